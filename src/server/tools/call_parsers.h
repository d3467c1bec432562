// Parsers make content and tool calls of the text of an answer, as it comes.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "server/api/tool_support.h"

namespace kvlathe {

// Qwen and Hermes: <tool_call>, a JSON object and </tool_call>, between content. A call that is no
// call (its JSON ends before its name is known) stays content as it is; one that is cut off later
// keeps the arguments that it has. White space around calls is no content. With `thinks`, what
// stands in <think> and </think> at the beginning is content, whatever is in it.
std::unique_ptr<api::AnswerParser> MakeTaggedCallParser(bool thinks);

// Llama 3.1 and Gemma 3: the answer is {"name": ..., "parameters": {...}}, several in a row (parted
// by white space, ; or ,) or in a list; before it there may be <|python_tag|>, around it a code
// fence (```json). What does not begin so, or names none of `tools`, is content.
std::unique_ptr<api::AnswerParser> MakeJsonCallParser(std::set<std::string> tools);

}  // namespace kvlathe

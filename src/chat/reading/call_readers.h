// From the text of an answer to content, thoughts and tool calls, as it comes.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "chat/reading/answer_format.h"
#include "chat/reading/answer_reader.h"

namespace kvlathe {

// The tools of a request: name -> JSON schema of its parameters, or null.
using ToolSchemas = std::map<std::string, nlohmann::ordered_json>;

// Calls in marks of the template, between content. What begins as a call and is none stays content
// as it is; a call that is cut off later keeps the arguments that it has. White space around calls
// is no content. The schemas say which arguments are texts, where the template does not quote them.
std::unique_ptr<AnswerReader> MakeMarkedCallReader(const CallFormat& format, ToolSchemas tools);

// Llama 3.1 and Gemma 3: the answer is {"name": ..., "parameters": {...}}, several in a row (parted
// by white space, ; or ,) or in a list; before it there may be <|python_tag|>, around it a code
// fence (```json). What does not begin so, or names none of `tools`, is content.
std::unique_ptr<AnswerReader> MakeJsonCallReader(ToolSchemas tools);

// Whether calls are JSON without marks, so that only the second of these can read them.
bool IsBareJson(const CallFormat& format);

// By a whole format: thoughts first, then calls if there are tools. Where calls are JSON objects in
// marks, an answer that begins with such an object without them, in a code fence perhaps, is a call
// too if it names a tool: Qwen2.5-Coder writes so.
std::unique_ptr<AnswerReader> MakeAnswerReader(const AnswerFormat& format, ToolSchemas tools);

}  // namespace kvlathe

// The text of a Jinja chat template in a form in which its parts can be compared.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct ScannedTemplate {
  // All blocks, one after the other, in one spelling: no white space outside strings, no comments
  // and no white-space control; strings in single quotes with their escapes resolved, and sums of
  // strings as one; message['content'] for message.content, |trim for .strip(), + for ~. Text
  // between blocks is a string, in one sum with the prints beside it. The loop over the messages
  // has the variable message, and what is set to a part of them is loop_messages, system_message,
  // first_user_prefix or content, unless these names have another use in the template. For example
  //   {%formessageinmessages%}{{'<|user|>\n'+message['content']|trim}}{%endfor%}
  std::string code;
  // The text between blocks that the template prints as it is, with trim_blocks and lstrip_blocks,
  // with which Hugging Face compiles templates.
  std::string raw;
  bool has_stray_space = false;  // raw has white space that belongs to no turn
  // What code has as strings where something is printed or set, each once: not those in subscripts
  // and messages of exceptions.
  std::vector<std::string> strings;

  bool Has(std::string_view part) const { return code.find(part) != std::string::npos; }
  // The string whose opening quote is code[pos].
  std::string StringAt(size_t pos) const;
};

// kDataLoss when a block or a string is not closed.
StatusOr<ScannedTemplate> ScanTemplate(std::string_view source);

}  // namespace kvlathe

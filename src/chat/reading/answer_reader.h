// An answer as it comes: content, thoughts and calls of tools.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

// A part of an answer, in the order in which it was generated.
struct AnswerDelta {
  struct Call {
    int call_idx = 0;       // 0, 1, ... in the order of the calls
    std::string name;       // whole, with the first delta of a call; empty in the others
    std::string arguments;  // what is added to its JSON text
  };
  std::string content;
  std::string thoughts;
  std::vector<Call> calls;
};

// Of one answer. Calls come from one thread at a time.
class AnswerReader {
 public:
  virtual ~AnswerReader() = default;

  // `text` is what was generated since the last call, whole UTF-8 characters. What may be the
  // beginning of a tool call is held back.
  virtual AnswerDelta Push(std::string_view text) = 0;
  // What is held back, at the end: the rest of a call that was cut off comes as it is.
  virtual AnswerDelta Finish() = 0;
};

}  // namespace kvlathe

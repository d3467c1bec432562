// A CallStream tells of the calls of one answer, also of one that is still being read.
#pragma once

#include <string>
#include <string_view>

#include "chat/reading/answer_reader.h"
#include "chat/reading/call_scanner.h"

namespace kvlathe {

// A parser that looks at what is pending in steps.
class StepwiseParser : public AnswerReader {
 public:
  AnswerDelta Push(std::string_view text) final {
    AnswerDelta delta;
    pending_ += text;
    while (Advance(&delta)) {
    }
    return delta;
  }

 protected:
  // One step. Whether it got any further, so that another may follow.
  virtual bool Advance(AnswerDelta* delta) = 0;

  std::string pending_;  // not looked at yet
};

class CallStream {
 public:
  // Begins the next call.
  void Begin(const CallKeys& keys = {});
  // Begins a call whose name stands in front of its arguments; what is fed are these alone.
  void BeginArguments(const std::string& name);
  // Feeds the scanner and adds what can be told to `delta`: the name once there are arguments, then
  // these. Returns how many bytes of `text` belong to the call.
  size_t Feed(std::string_view text, AnswerDelta* delta);

  const CallScanner& scanner() const { return scanner_; }
  // Whether anything of this call was told.
  bool is_told() const { return is_told_; }
  // Calls that were told, the one that is read included.
  int n_calls() const { return n_calls_; }
  // Counts a call whose arguments others read, and returns its index.
  int CountCall() { return n_calls_++; }
  // While set, a call is read without being told.
  void set_silent(bool is_silent) { is_silent_ = is_silent; }

 private:
  CallScanner scanner_;
  bool is_told_ = false;
  bool is_silent_ = false;
  int n_calls_ = 0;
};

}  // namespace kvlathe

#include "chat/reading/call_stream.h"

#include <utility>

namespace kvlathe {

void CallStream::Begin(const CallKeys& keys) {
  scanner_ = CallScanner(keys);
  is_told_ = false;
}

void CallStream::BeginArguments(const std::string& name) {
  scanner_ = CallScanner::OfArguments(name);
  is_told_ = false;
}

size_t CallStream::Feed(std::string_view text, AnswerDelta* delta) {
  const size_t n = scanner_.Feed(text);
  if (is_silent_ || !scanner_.name() || !scanner_.has_arguments()) return n;
  if (scanner_.state() == CallScanner::State::kMalformed && !is_told_) return n;
  if (!is_told_) {
    is_told_ = true;
    delta->calls.push_back({.call_idx = n_calls_++, .name = *scanner_.name()});
  }
  std::string arguments = scanner_.TakeArguments();
  if (arguments.empty()) return n;
  const int call_idx = n_calls_ - 1;
  if (delta->calls.empty() || delta->calls.back().call_idx != call_idx) {
    delta->calls.push_back({.call_idx = call_idx});
  }
  delta->calls.back().arguments += arguments;
  return n;
}

}  // namespace kvlathe

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "server/tools/call_parsers.h"
#include "server/tools/call_stream.h"

namespace kvlathe {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

// How many bytes at the end of `text` may be the beginning of `marker`.
size_t PossibleBeginning(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

class TaggedCallParser : public StepwiseParser {
 public:
  explicit TaggedCallParser(bool thinks) : state_(thinks ? State::kBeforeThoughts : State::kText) {}

  api::AnswerDelta Finish() override {
    api::AnswerDelta delta;
    // A call of which nothing was told is content; blanks behind a call are not.
    const bool is_open_call = state_ == State::kCall && !call_.is_told();
    if (is_open_call) pending_ = std::exchange(raw_, {});
    const bool is_text = state_ == State::kText || state_ == State::kThoughts ||
                         state_ == State::kBeforeThoughts || is_open_call;
    if (is_text && (!follows_call_ || pending_.find_first_not_of(kBlanks) != std::string::npos)) {
      delta.content = std::exchange(blanks_, {}) + pending_;
    }
    pending_.clear();
    return delta;
  }

 private:
  enum class State {
    kBeforeThoughts,  // nothing but blanks came
    kThoughts,        // content, up to </think>
    kText,            // content, up to <tool_call>
    kCall,            // the JSON of a call
    kBehindCall,      // up to </tool_call>
  };

  // Whether it got any further with what is pending.
  bool Advance(api::AnswerDelta* delta) override {
    if (pending_.empty()) return false;
    switch (state_) {
      case State::kBeforeThoughts:
        return LookForThoughts();
      case State::kThoughts:
        return ReadThoughts(delta);
      case State::kText:
        return ReadText(delta);
      case State::kCall:
        return ReadCall(delta);
      case State::kBehindCall:
        return SkipBehindCall();
    }
    return false;
  }

  bool LookForThoughts() {
    const size_t begin = pending_.find_first_not_of(kBlanks);
    if (begin == std::string::npos) return false;
    const std::string_view rest = std::string_view(pending_).substr(begin);
    if (rest.size() < kThink.size() && kThink.starts_with(rest)) return false;
    state_ = rest.starts_with(kThink) ? State::kThoughts : State::kText;
    return true;
  }

  bool ReadThoughts(api::AnswerDelta* delta) {
    const size_t end = pending_.find(kThinkEnd);
    if (end == std::string::npos) {
      TakeContent(pending_.size() - PossibleBeginning(pending_, kThinkEnd), delta);
      return false;
    }
    TakeContent(end + kThinkEnd.size(), delta);
    state_ = State::kText;
    return true;
  }

  bool ReadText(api::AnswerDelta* delta) {
    const size_t begin = pending_.find(kBegin);
    if (begin == std::string::npos) {
      TakeContent(pending_.size() - PossibleBeginning(pending_, kBegin), delta);
      return false;
    }
    TakeContent(begin, delta);
    pending_.erase(0, kBegin.size());
    raw_ = kBegin;
    call_.Begin();
    state_ = State::kCall;
    return true;
  }

  bool ReadCall(api::AnswerDelta* delta) {
    const size_t n = call_.Feed(pending_, delta);
    raw_.append(pending_, 0, n);
    pending_.erase(0, n);
    switch (call_.scanner().state()) {
      case CallScanner::State::kGoing:
        return false;
      case CallScanner::State::kDone:
        state_ = State::kBehindCall;
        break;
      case CallScanner::State::kMalformed:
        if (call_.is_told()) {
          state_ = State::kBehindCall;
        } else {  // no call: its text is content, and blanks in front of it with it
          delta->content += std::exchange(blanks_, {}) + std::exchange(raw_, {});
          follows_call_ = false;
          state_ = State::kText;
        }
    }
    if (state_ == State::kBehindCall) {
      blanks_.clear();
      follows_call_ = true;
    }
    return true;
  }

  bool SkipBehindCall() {
    const size_t end = pending_.find(kEnd);
    if (end == std::string::npos) {
      pending_.erase(0, pending_.size() - PossibleBeginning(pending_, kEnd));
      return false;
    }
    pending_.erase(0, end + kEnd.size());
    state_ = State::kText;
    return true;
  }

  // The first n pending bytes. Blanks at their end are held back until it is known that no call
  // follows, and blanks behind a call are dropped.
  void TakeContent(size_t n, api::AnswerDelta* delta) {
    std::string text = std::exchange(blanks_, {}) + pending_.substr(0, n);
    pending_.erase(0, n);
    const size_t last = text.find_last_not_of(kBlanks);
    if (last == std::string::npos) {
      blanks_ = std::move(text);
      return;
    }
    blanks_ = text.substr(last + 1);
    text.erase(last + 1);
    if (std::exchange(follows_call_, false)) text.erase(0, text.find_first_not_of(kBlanks));
    delta->content += text;
  }

  State state_;
  std::string blanks_;         // of content, in front of what is pending
  std::string raw_;            // the call that is read, as it was written
  bool follows_call_ = false;  // no content came since the last call
  CallStream call_;
};

}  // namespace

std::unique_ptr<api::AnswerParser> MakeTaggedCallParser(bool thinks) {
  return std::make_unique<TaggedCallParser>(thinks);
}

}  // namespace kvlathe

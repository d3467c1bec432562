#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "chat/reading/call_readers.h"
#include "chat/reading/call_stream.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

// What may stand in front of the first call.
constexpr std::array<std::string_view, 3> kOpenings = {"<|python_tag|>", "```json", "```"};

class JsonCallReader : public StepwiseParser {
 public:
  explicit JsonCallReader(ToolSchemas tools) : tools_(std::move(tools)) {}

  AnswerDelta Finish() override {
    AnswerDelta delta;
    const bool is_open_call = state_ == State::kCall && !call_.is_told();
    if (state_ == State::kStart || is_open_call || state_ == State::kText) {
      delta.content = std::exchange(raw_, {}) + std::exchange(pending_, {});
    }
    return delta;
  }

 private:
  enum class State {
    kStart,    // in front of the first call, if there is one
    kCall,     // the JSON of a call
    kBetween,  // behind a call
    kText,     // content to the end
    kOver,     // a call ended in the middle: what follows is dropped
  };

  bool Advance(AnswerDelta* delta) override {
    if (pending_.empty()) return false;
    switch (state_) {
      case State::kStart:
        return LookForCall();
      case State::kCall:
        return ReadCall(delta);
      case State::kBetween:
        return LookForNext();
      case State::kText:
        delta->content += std::exchange(raw_, {}) + std::exchange(pending_, {});
        return false;
      case State::kOver:
        pending_.clear();
        return false;
    }
    return false;
  }

  // Moves n pending bytes to raw_: they are content again if no call comes of them.
  void Skip(size_t n) {
    raw_.append(pending_, 0, n);
    pending_.erase(0, n);
  }

  bool LookForCall() {
    Skip(std::min(pending_.find_first_not_of(kBlanks), pending_.size()));
    if (pending_.empty()) return false;
    if (pending_[0] == '[' && !is_list_) {
      is_list_ = true;
      Skip(1);
      return true;
    }
    if (pending_[0] == '{') return BeginCall();
    if (!is_opened_ && !is_list_) {
      for (const std::string_view opening : kOpenings) {
        if (pending_.size() < opening.size() && opening.starts_with(pending_)) return false;
        if (!pending_.starts_with(opening)) continue;
        is_opened_ = true;
        Skip(opening.size());
        return true;
      }
    }
    state_ = State::kText;
    return true;
  }

  bool LookForNext() {
    const size_t begin = pending_.find_first_not_of(" \t\r\n,;]");
    if (begin == std::string::npos) return false;
    if (pending_[begin] == '{') {
      pending_.erase(0, begin);
      return BeginCall();
    }
    if (pending_[begin] == '`' || pending_[begin] == '<') {  // the end of a fence, a control token
      state_ = State::kOver;
    } else {
      state_ = State::kText;
    }
    return true;
  }

  bool BeginCall() {
    call_.Begin();
    call_.set_silent(true);  // until its name is known to be that of a tool
    state_ = State::kCall;
    return true;
  }

  bool ReadCall(AnswerDelta* delta) {
    Skip(call_.Feed(pending_, delta));
    const auto& name = call_.scanner().name();
    const bool is_unknown = name.has_value() && !tools_.contains(*name);
    if (name.has_value() && !is_unknown) {
      call_.set_silent(false);
      call_.Feed({}, delta);
    }
    const CallScanner::State scanned = call_.scanner().state();
    if (scanned == CallScanner::State::kMalformed || is_unknown) {
      state_ = call_.is_told() ? State::kOver : State::kText;
    } else if (scanned == CallScanner::State::kDone) {
      raw_.clear();
      state_ = State::kBetween;
    } else {
      return false;
    }
    return true;
  }

  ToolSchemas tools_;
  State state_ = State::kStart;
  std::string raw_;  // of a call, or in front of it, as it was written
  bool is_list_ = false;
  bool is_opened_ = false;
  CallStream call_;
};

}  // namespace

std::unique_ptr<AnswerReader> MakeJsonCallReader(ToolSchemas tools) {
  return std::make_unique<JsonCallReader>(std::move(tools));
}

}  // namespace kvlathe

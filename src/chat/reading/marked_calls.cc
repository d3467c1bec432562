#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "chat/reading/call_readers.h"
#include "chat/reading/call_stream.h"
#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

// How many bytes at the end of `text` may be the beginning of `marker`.
size_t PossibleBeginning(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == marker.substr(0, n)) return n;
  }
  return 0;
}

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == ':' || c == '/';
}

// "functions.NAME:0" -> NAME
std::string NameInId(std::string name) {
  constexpr std::string_view kNamespace = "functions.";
  if (name.starts_with(kNamespace)) name.erase(0, kNamespace.size());
  return name.substr(0, name.rfind(':'));
}

class MarkedCallReader : public StepwiseParser {
 public:
  MarkedCallReader(CallFormat format, ToolSchemas tools)
      : format_(std::move(format)), tools_(std::move(tools)), arguments_(&format_) {
    const std::string_view begin =
        format_.is_object
            ? std::string_view(format_.call_begin).substr(0, format_.call_begin.find('{'))
            : std::string_view(format_.call_begin);
    opening_ = format_.section_begin + std::string(begin);
    next_ = TrimBlanks(begin);
    behind_between_ = next_.empty() ? "" : format_.between + next_;
    if (!format_.is_object && TrimBlanks(opening_).empty()) {
      // An answer begins with the name of a tool, and a mark stands in front of further ones.
      opening_ = next_ = TrimBlanks(format_.between);
      begins_with_name_ = true;
      state_ = State::kName;
    }
    trigger_ = FirstMark(opening_);
    // What ends an object is read with it.
    end_ = format_.is_object ? format_.call_end.substr(format_.call_end.rfind('}') + 1)
                             : format_.call_end;
  }

  AnswerDelta Finish() override {
    AnswerDelta delta;
    const bool is_call = state_ == State::kName || state_ == State::kObject ||
                         state_ == State::kArguments || state_ == State::kOpening;
    if (is_call && !is_told_) {  // a call of which nothing was told is content
      pending_ = std::exchange(raw_, {}) + pending_;
    } else if (state_ != State::kText) {
      pending_.clear();
    }
    if (!follows_call_ || pending_.find_first_not_of(kBlanks) != std::string::npos) {
      delta.content = std::exchange(blanks_, {}) + pending_;
    }
    pending_.clear();
    return delta;
  }

 private:
  enum class State {
    kText,       // content, up to a trigger
    kOpening,    // what stands in front of a call
    kObject,     // a call that is one JSON object
    kName,       // the name in front of the arguments
    kArguments,  // these
    kBehind,     // behind a call: its end, the next call or the end of all
  };

  bool Advance(AnswerDelta* delta) override {
    if (pending_.empty()) return false;
    switch (state_) {
      case State::kText:
        return ReadText(delta);
      case State::kOpening:
        return ReadOpening(delta);
      case State::kObject:
        return ReadObject(delta);
      case State::kName:
        return ReadName(delta);
      case State::kArguments:
        return ReadArguments(delta);
      case State::kBehind:
        return ReadBehind();
    }
    return false;
  }

  bool ReadText(AnswerDelta* delta) {
    const size_t begin = pending_.find(trigger_);
    if (begin == std::string::npos) {
      TakeContent(pending_.size() - PossibleBeginning(pending_, trigger_), delta);
      return false;
    }
    TakeContent(begin, delta);
    BeginCall(opening_);
    return true;
  }

  void BeginCall(std::string_view opening) {
    expected_ = opening;
    is_told_ = false;
    state_ = State::kOpening;
  }

  bool ReadOpening(AnswerDelta* delta) {
    const LooseMatch match = MatchLoosely(pending_, expected_);
    if (match.state == LooseMatch::State::kOpen) return false;
    if (match.state == LooseMatch::State::kNone) return Refuse(delta);
    Skip(match.end);
    if (format_.is_object) {
      call_.Begin({format_.name_key, format_.arguments_key, format_.around_key});
      state_ = State::kObject;
    } else {
      state_ = State::kName;
    }
    return true;
  }

  // Not a call: its text so far is content, and blanks in front of it with it.
  bool Refuse(AnswerDelta* delta) {
    if (raw_.empty()) Skip(std::max<size_t>(1, std::min(trigger_.size(), pending_.size())));
    delta->content += std::exchange(blanks_, {}) + std::exchange(raw_, {});
    follows_call_ = false;
    state_ = State::kText;
    return true;
  }

  bool ReadObject(AnswerDelta* delta) {
    Skip(call_.Feed(pending_, delta));
    is_told_ = call_.is_told();
    return AfterScan(delta);
  }

  bool AfterScan(AnswerDelta* delta) {
    switch (call_.scanner().state()) {
      case CallScanner::State::kGoing:
        return false;
      case CallScanner::State::kMalformed:
        if (!is_told_) return Refuse(delta);
        [[fallthrough]];
      case CallScanner::State::kDone:
        EndCall();
    }
    return true;
  }

  void EndCall() {
    raw_.clear();
    blanks_.clear();
    follows_call_ = true;
    end_is_open_ = true;
    state_ = State::kBehind;
  }

  bool ReadName(AnswerDelta* delta) {
    const size_t begin = std::min(pending_.find_first_not_of(kBlanks), pending_.size());
    const size_t end =
        static_cast<size_t>(std::find_if_not(pending_.begin() + static_cast<std::ptrdiff_t>(begin),
                                             pending_.end(), IsNameByte) -
                            pending_.begin());
    if (end == pending_.size()) return false;
    std::string name = pending_.substr(begin, end - begin);
    if (format_.ids_hold_names) name = NameInId(std::move(name));
    if (name.empty() || (begins_with_name_ && !tools_.contains(name))) return Refuse(delta);
    const std::string_view rest = std::string_view(pending_).substr(end);
    const LooseMatch match = MatchLoosely(rest, format_.name_end);
    if (match.state == LooseMatch::State::kOpen) return false;
    const bool is_json = format_.arguments == CallFormat::Arguments::kJson;
    const size_t brace = rest.find_first_not_of(kBlanks);
    const bool has_brace = is_json && brace != std::string_view::npos && rest[brace] == '{';
    if (match.state == LooseMatch::State::kNone && !has_brace) return Refuse(delta);
    Skip(end + (match.state == LooseMatch::State::kWhole ? match.end : 0));
    name_ = name;
    if (is_json) {
      call_.BeginArguments(name);
    } else {
      const auto tool = tools_.find(name);
      arguments_.Begin(tool == tools_.end() ? nullptr : &tool->second);
    }
    state_ = State::kArguments;
    return true;
  }

  bool ReadArguments(AnswerDelta* delta) {
    if (format_.arguments == CallFormat::Arguments::kJson) return ReadObject(delta);
    const MarkedArguments::Step step = arguments_.Read(pending_);
    if (step.state == MarkedArguments::State::kMalformed && !is_told_) return Refuse(delta);
    if (!step.json.empty()) Tell(step.json, delta);
    Skip(step.n_bytes);
    if (step.state == MarkedArguments::State::kGoing) return false;
    EndCall();
    return true;
  }

  void Tell(const std::string& json, AnswerDelta* delta) {
    if (!is_told_) {
      is_told_ = true;
      delta->calls.push_back({.call_idx = call_.CountCall(), .name = name_});
    }
    const int call_idx = call_.n_calls() - 1;
    if (delta->calls.empty() || delta->calls.back().call_idx != call_idx) {
      delta->calls.push_back({.call_idx = call_idx});
    }
    delta->calls.back().arguments += json;
  }

  bool ReadBehind() {
    const size_t blanks = std::min(pending_.find_first_not_of(" \t\r\n,;"), pending_.size());
    const std::string_view rest = std::string_view(pending_).substr(blanks);
    if (rest.empty()) return false;
    bool may_come = false;
    const auto takes = [&](std::string_view literal) {
      if (TrimBlanks(literal).empty()) return false;
      const LooseMatch match = MatchLoosely(rest, literal);
      may_come = may_come || match.state == LooseMatch::State::kOpen;
      if (match.state != LooseMatch::State::kWhole) return false;
      pending_.erase(0, blanks + match.end);
      return true;
    };
    if (end_is_open_ && takes(end_)) {
      end_is_open_ = false;
      return true;
    }
    const bool is_named = !format_.is_object && !end_is_open_ && IsNameByte(rest[0]);
    if (next_.empty() && ((format_.is_object && rest[0] == '{') || is_named)) {
      pending_.erase(0, blanks);
      BeginCall("");
      return true;
    }
    for (const std::string_view next :
         {std::string_view(next_), std::string_view(opening_), std::string_view(behind_between_)}) {
      if (TrimBlanks(next).empty()) continue;
      const LooseMatch match = MatchLoosely(rest, next);
      may_come = may_come || match.state == LooseMatch::State::kOpen;
      if (match.state != LooseMatch::State::kWhole) continue;
      pending_.erase(0, blanks);
      BeginCall(next);
      return true;
    }
    if (takes(format_.section_end)) {
      state_ = State::kText;
      return true;
    }
    if (may_come) return false;
    state_ = State::kText;
    return true;
  }

  // Moves n pending bytes to raw_: they are content again if no call comes of them.
  void Skip(size_t n) {
    raw_.append(pending_, 0, n);
    pending_.erase(0, n);
  }

  // The first n pending bytes. Blanks at their end are held back until it is known that no call
  // follows, and blanks behind a call are dropped.
  void TakeContent(size_t n, AnswerDelta* delta) {
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

  CallFormat format_;
  ToolSchemas tools_;
  MarkedArguments arguments_;
  std::string opening_, next_;  // in front of the first call and of others
  std::string behind_between_;  // the second behind what stands between calls
  std::string trigger_;         // what calls begin with
  std::string end_;             // behind a call
  std::string_view expected_;
  State state_ = State::kText;
  std::string blanks_;  // of content, in front of what is pending
  std::string raw_;     // the call that is read, as it was written
  std::string name_;
  bool is_told_ = false;
  bool begins_with_name_ = false;
  bool end_is_open_ = false;   // the end of the last call did not come yet
  bool follows_call_ = false;  // no content came since the last call
  CallStream call_;
};

}  // namespace

LooseMatch MatchLoosely(std::string_view text, std::string_view literal) {
  size_t pos = 0;
  for (const char c : literal) {
    if (kBlanks.find(c) != std::string_view::npos) continue;
    pos = text.find_first_not_of(kBlanks, pos);
    if (pos == std::string_view::npos) return {LooseMatch::State::kOpen, 0};
    if (kAnyWords.find(c) != std::string_view::npos) {
      const size_t begin = pos;
      while (pos < text.size() && IsNameByte(text[pos])) ++pos;
      if (pos == text.size()) return {LooseMatch::State::kOpen, 0};
      if (pos == begin) return {LooseMatch::State::kNone, 0};
      continue;
    }
    if (text[pos] != c) return {LooseMatch::State::kNone, 0};
    ++pos;
  }
  return {LooseMatch::State::kWhole, pos};
}

std::string FirstMark(std::string_view literal) {
  literal = TrimBlanks(literal);
  const char close = literal.starts_with('<') ? '>' : literal.starts_with('[') ? ']' : '\0';
  literal = literal.substr(0, literal.find_first_of(kAnyWords));
  const size_t end = close == '\0' ? literal.find_first_of(kBlanks) : literal.find(close);
  if (end == std::string_view::npos) return std::string(literal);
  return std::string(literal.substr(0, close == '\0' ? end : end + 1));
}

std::unique_ptr<AnswerReader> MakeMarkedCallReader(const CallFormat& format, ToolSchemas tools) {
  return std::make_unique<MarkedCallReader>(format, std::move(tools));
}

}  // namespace kvlathe

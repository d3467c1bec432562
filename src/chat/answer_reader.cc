#include "chat/answer_reader.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "chat/call_readers.h"
#include "chat/marked_arguments.h"
#include "chat/text_compare.h"

namespace kvlathe {
namespace {

// Everything is content.
class TextReader : public AnswerReader {
 public:
  AnswerDelta Push(std::string_view text) override { return {.content = std::string(text)}; }
  AnswerDelta Finish() override { return {}; }
};

// Thoughts at the beginning, and behind them what another reader reads.
class ThoughtReader : public AnswerReader {
 public:
  ThoughtReader(ThoughtFormat format, std::string text_begin, std::unique_ptr<AnswerReader> inner)
      : begin_(TrimBlanks(format.begin)),
        end_(TrimBlanks(format.end)),
        text_begin_(TrimBlanks(text_begin)),
        inner_(std::move(inner)),
        is_open_(format.is_open) {
    if (begin_.empty() || end_.empty()) state_ = State::kBeforeText;
  }

  AnswerDelta Push(std::string_view text) override {
    AnswerDelta delta;
    pending_ += text;
    while (Advance(&delta)) {
    }
    return delta;
  }

  AnswerDelta Finish() override {
    AnswerDelta delta;
    if (state_ == State::kThoughts || (state_ == State::kStart && is_open_)) {
      delta.thoughts = std::string(TrimBlanks(std::exchange(pending_, {})));
      return delta;
    }
    if (!pending_.empty()) delta = inner_->Push(std::exchange(pending_, {}));
    AnswerDelta rest = inner_->Finish();
    delta.content += rest.content;
    delta.calls.insert(delta.calls.end(), std::make_move_iterator(rest.calls.begin()),
                       std::make_move_iterator(rest.calls.end()));
    return delta;
  }

 private:
  enum class State { kStart, kThoughts, kBehindThoughts, kBeforeText, kText };

  bool Advance(AnswerDelta* delta) {
    if (pending_.empty()) return false;
    switch (state_) {
      case State::kStart:
        return LookForThoughts();
      case State::kThoughts:
        return ReadThoughts(delta);
      case State::kBehindThoughts:
        pending_.erase(0, std::min(pending_.find_first_not_of(" \t\r\n"), pending_.size()));
        if (pending_.empty()) return false;
        state_ = State::kBeforeText;
        return true;
      case State::kBeforeText:
        return DropTextBegin();
      case State::kText:
        Add(inner_->Push(std::exchange(pending_, {})), delta);
        return false;
    }
    return false;
  }

  bool LookForThoughts() {
    const LooseMatch match = MatchLoosely(pending_, begin_);
    if (match.state == LooseMatch::State::kOpen) return false;
    if (match.state == LooseMatch::State::kWhole) pending_.erase(0, match.end);
    const bool has_thoughts = is_open_ || match.state == LooseMatch::State::kWhole;
    state_ = has_thoughts ? State::kThoughts : State::kBeforeText;
    return true;
  }

  // Blanks at both ends of the thoughts belong to the marks.
  bool ReadThoughts(AnswerDelta* delta) {
    const size_t end = pending_.find(end_);
    if (end != std::string::npos) {
      AddThoughts(TrimBlanks(std::string_view(pending_).substr(0, end)).size(), delta);
      pending_.erase(0, pending_.find(end_) + end_.size());
      state_ = State::kBehindThoughts;
      return true;
    }
    size_t n = pending_.size();
    for (size_t k = std::min(n, end_.size() - 1); k > 0; --k) {
      if (std::string_view(pending_).substr(n - k) == std::string_view(end_).substr(0, k)) {
        n -= k;
        break;
      }
    }
    const std::string_view told = TrimBlanks(std::string_view(pending_).substr(0, n));
    AddThoughts(told.size(), delta);
    return false;
  }

  // The first n bytes behind blanks, which are dropped in front of the first thought only.
  void AddThoughts(size_t n, AnswerDelta* delta) {
    const size_t blanks = std::min(pending_.find_first_not_of(" \t\r\n"), pending_.size());
    if (n == 0) return;
    delta->thoughts +=
        pending_.substr(has_thoughts_ ? 0 : blanks, n + (has_thoughts_ ? blanks : 0));
    has_thoughts_ = true;
    pending_.erase(0, blanks + n);
  }

  bool DropTextBegin() {
    if (!text_begin_.empty()) {
      const LooseMatch match = MatchLoosely(pending_, text_begin_);
      if (match.state == LooseMatch::State::kOpen) return false;
      if (match.state == LooseMatch::State::kWhole) pending_.erase(0, match.end);
    }
    state_ = State::kText;
    return true;
  }

  static void Add(AnswerDelta from, AnswerDelta* to) {
    to->content += from.content;
    to->calls.insert(to->calls.end(), std::make_move_iterator(from.calls.begin()),
                     std::make_move_iterator(from.calls.end()));
  }

  std::string begin_, end_, text_begin_;
  std::unique_ptr<AnswerReader> inner_;
  bool is_open_;
  State state_ = State::kStart;
  bool has_thoughts_ = false;
  std::string pending_;
};

}  // namespace

bool IsBareJson(const CallFormat& format) {
  if (!format.is_object) return false;
  const std::string opening =
      format.section_begin + format.call_begin.substr(0, format.call_begin.find('{'));
  const std::string_view mark = TrimBlanks(opening);
  return mark.empty() || mark == "[";
}

std::unique_ptr<AnswerReader> MakeAnswerReader(const AnswerFormat& format, ToolSchemas tools) {
  std::unique_ptr<AnswerReader> reader;
  if (tools.empty() || !format.calls) {
    reader = std::make_unique<TextReader>();
  } else if (IsBareJson(*format.calls)) {
    reader = MakeJsonCallReader(std::move(tools));
  } else {
    reader = MakeMarkedCallReader(*format.calls, std::move(tools));
  }
  if (!format.thoughts && format.text_begin.empty()) return reader;
  return std::make_unique<ThoughtReader>(format.thoughts.value_or(ThoughtFormat()),
                                         format.text_begin, std::move(reader));
}

}  // namespace kvlathe

#include "chat/reading/answer_reader.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "chat/reading/call_readers.h"
#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

// Everything is content.
class TextReader : public AnswerReader {
 public:
  AnswerDelta Push(std::string_view text) override { return {.content = std::string(text)}; }
  AnswerDelta Finish() override { return {}; }
};

// Calls in marks, of a model that may forget them: an answer that begins with a code fence or a
// JSON object is read for calls first, and what is none goes on to the reader of marks.
class ForgottenMarksReader : public AnswerReader {
 public:
  ForgottenMarksReader(std::unique_ptr<AnswerReader> bare, std::unique_ptr<AnswerReader> marked)
      : bare_(std::move(bare)), marked_(std::move(marked)) {}

  AnswerDelta Push(std::string_view text) override {
    if (!is_begun_) {
      blanks_ += text;
      const size_t begin = blanks_.find_first_not_of(" \t\r\n");
      if (begin == std::string::npos) return {};
      is_begun_ = true;
      if (blanks_[begin] != '`' && blanks_[begin] != '{') bare_.reset();
      return Read(std::exchange(blanks_, {}));
    }
    return Read(text);
  }

  AnswerDelta Finish() override {
    AnswerDelta delta;
    if (!is_begun_) Append(marked_->Push(blanks_), &delta);
    if (bare_ != nullptr) delta = Behind(bare_->Finish());
    Append(marked_->Finish(), &delta);
    return delta;
  }

 private:
  AnswerDelta Read(std::string_view text) {
    return bare_ != nullptr ? Behind(bare_->Push(text)) : marked_->Push(text);
  }
  // With content read by the reader of marks.
  AnswerDelta Behind(AnswerDelta of_bare) {
    AnswerDelta delta = {.calls = std::move(of_bare.calls)};
    for (const AnswerDelta::Call& call : delta.calls) n_bare_calls_ = call.call_idx + 1;
    if (!of_bare.content.empty()) Append(marked_->Push(of_bare.content), &delta);
    return delta;
  }
  // What the reader of marks told, whose calls come behind the others.
  void Append(AnswerDelta from, AnswerDelta* to) const {
    to->content += from.content;
    for (AnswerDelta::Call& call : from.calls) call.call_idx += n_bare_calls_;
    to->calls.insert(to->calls.end(), std::make_move_iterator(from.calls.begin()),
                     std::make_move_iterator(from.calls.end()));
  }

  std::unique_ptr<AnswerReader> bare_;  // null: the answer does not begin so
  std::unique_ptr<AnswerReader> marked_;
  std::string blanks_;
  bool is_begun_ = false;
  int n_bare_calls_ = 0;
};

// How many bytes at the end of `text` begin `mark`, all of it included.
size_t BeginningAtEnd(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size()); n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  }
  return 0;
}

// Thoughts at the beginning, and behind them what another reader reads, without the marks around
// the text.
class WholeAnswerReader : public AnswerReader {
 public:
  WholeAnswerReader(const AnswerFormat& format, std::unique_ptr<AnswerReader> inner)
      : text_begin_(format.text_begin), text_end_(format.text_end), inner_(std::move(inner)) {
    if (format.thoughts) {
      begin_ = TrimBlanks(format.thoughts->begin);
      end_ = TrimBlanks(format.thoughts->end);
      is_open_ = format.thoughts->is_open;
    }
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
    if (!pending_.empty()) Add(inner_->Push(std::exchange(pending_, {})), &delta);
    Add(inner_->Finish(), &delta);
    if (held_ != text_end_) delta.content += held_;
    held_.clear();
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
    if (is_open_ || match.state == LooseMatch::State::kWhole) {
      state_ = State::kThoughts;
      return true;
    }
    // An end without a beginning ends thoughts that were none.
    const LooseMatch end = MatchLoosely(pending_, end_);
    if (end.state == LooseMatch::State::kOpen) return false;
    if (end.state == LooseMatch::State::kWhole) pending_.erase(0, end.end);
    state_ = end.state == LooseMatch::State::kWhole ? State::kBehindThoughts : State::kBeforeText;
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
    const size_t n = pending_.size() - BeginningAtEnd(pending_, end_);
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
    const LooseMatch match = MatchLoosely(pending_, text_begin_);
    if (match.state == LooseMatch::State::kOpen) return false;
    if (match.state == LooseMatch::State::kWhole) {
      // The blanks at its end are as they are.
      const size_t last = text_begin_.find_last_not_of(" \t\r\n");
      const std::string_view tail =
          std::string_view(text_begin_).substr(last == std::string::npos ? 0 : last + 1);
      const size_t n = CommonPrefix(std::string_view(pending_).substr(match.end), tail);
      if (n < tail.size() && match.end + n == pending_.size()) return false;
      pending_.erase(0, match.end + (n == tail.size() ? n : 0));
    }
    state_ = State::kText;
    return true;
  }

  void Add(AnswerDelta from, AnswerDelta* to) {
    held_ += from.content;
    const size_t n = held_.size() - BeginningAtEnd(held_, text_end_);
    to->content.append(held_, 0, n);
    held_.erase(0, n);
    to->calls.insert(to->calls.end(), std::make_move_iterator(from.calls.begin()),
                     std::make_move_iterator(from.calls.end()));
  }

  std::string begin_, end_, text_begin_, text_end_;
  std::unique_ptr<AnswerReader> inner_;
  bool is_open_ = false;
  State state_ = State::kStart;
  bool has_thoughts_ = false;
  std::string pending_;
  std::string held_;  // of the content: it may be the end of the text
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
  } else if (format.calls->is_object && format.calls->arguments == CallFormat::Arguments::kJson) {
    auto bare = MakeJsonCallReader(tools);
    reader = std::make_unique<ForgottenMarksReader>(
        std::move(bare), MakeMarkedCallReader(*format.calls, std::move(tools)));
  } else {
    reader = MakeMarkedCallReader(*format.calls, std::move(tools));
  }
  if (!format.thoughts && format.text_begin.empty() && format.text_end.empty()) return reader;
  return std::make_unique<WholeAnswerReader>(format, std::move(reader));
}

}  // namespace kvlathe

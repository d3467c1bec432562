// A text rule says which texts a string of a JSON schema may be: by a pattern and by a least and a
// largest number of characters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "structured/text_pattern.h"

namespace kvlathe {

// Immutable once made. A text moves from state to state with each of its characters.
class TextRule {
 public:
  static constexpr int64_t kAnyLength = INT64_MAX;

  // From `least` to `most` characters (code points), and of `pattern` if there is one. Takes of
  // `n_steps_left` what it costs to make and to keep. kInvalidArgument: that is not enough, or no
  // text satisfies the rule.
  static StatusOr<TextRule> Make(const std::optional<PatternNode>& pattern, int64_t least,
                                 int64_t most, int64_t* n_steps_left);

  int64_t least() const { return least_; }
  int64_t most() const { return most_; }
  bool has_pattern() const { return !states_.empty(); }
  int64_t n_bytes() const;
  bool Takes(std::string_view text) const;

 private:
  friend class TextRuleWalk;
  static constexpr int kEndOfText = -1;

  // Either one character of `set` goes on to `next`, or any of `others` stands for the state; the
  // state without both is the end.
  struct State {
    CodeSet set;
    int next = kEndOfText;
    std::vector<int> others;
  };

  int Add(State state);
  int AddNode(const PatternNode& node, int next);
  int AddRepeat(const PatternNode& node, int next);
  void FindLiving();
  void FindLengths();
  void Close(int state, std::vector<bool>* is_in, std::vector<int>* closed) const;

  int64_t least_ = 0, most_ = kAnyLength;
  std::vector<State> states_;  // states_[0] is the end
  int start_ = 0;
  bool is_too_large_ = false;
  std::vector<bool> lives_;  // a text can end behind the state
  // [states_.size()][n_length_words_]: bit n of a state: n characters lead from it to the end. Only
  // where pattern and lengths meet.
  std::vector<uint64_t> lengths_;
  size_t n_length_words_ = 0;
};

// Walks texts by one rule, and remembers where characters led. For one thread.
class TextRuleWalk {
 public:
  static constexpr int kNowhere = -1;

  explicit TextRuleWalk(const TextRule* rule);

  const TextRule& rule() const { return *rule_; }
  int start() const { return 0; }
  // The place behind `code`, or kNowhere; that too where more places would be remembered than a
  // walk may.
  int Step(int place, char32_t code);
  // Whether a text that is at `place` after `n_characters` may end there, whether it can end by the
  // rule with more of them, and whether it can with a next one from `first` to `last`.
  bool MayEnd(int place, int64_t n_characters) const;
  bool CanEnd(int place, int64_t n_characters);
  bool CanEndBehind(int place, char32_t first, char32_t last, int64_t n_characters);
  // Forgets all places but `kept`, which get new numbers, where there are many.
  void Forget(std::span<int* const> kept);

 private:
  struct Way {
    char32_t first, last;
    int to;
  };
  struct Place {
    std::vector<int> states;  // closed and ascending
    bool is_end = false;
    bool is_explored = false;
    std::vector<Way> ways;          // ascending
    std::vector<uint64_t> lengths;  // of its states together, once they were asked for
  };

  int Enter(std::vector<int> states);
  void Explore(int place);

  const TextRule* rule_;
  std::vector<Place> places_;
  std::map<std::vector<int>, int> by_states_;
};

}  // namespace kvlathe

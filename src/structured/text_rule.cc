#include "structured/text_rule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr size_t kMostStates = 1 << 13;
constexpr int64_t kMostLeastBesidePattern = 4096;
constexpr size_t kMostPlaces = 1 << 14;
constexpr int64_t kStepsOfState = 1024;
constexpr int kLengthBits = 64;

}  // namespace

int TextRule::Add(State state) {
  if (states_.size() >= kMostStates) {
    is_too_large_ = true;
    return 0;
  }
  states_.push_back(std::move(state));
  return static_cast<int>(states_.size()) - 1;
}

// The first state of `node`, behind which comes `next`.
int TextRule::AddNode(const PatternNode& node, int next) {
  if (is_too_large_) return 0;
  switch (node.kind) {
    case PatternNode::Kind::kSet:
      return Add({.set = node.set, .next = next, .others = {}});
    case PatternNode::Kind::kSequence:
      for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) {
        next = AddNode(*part, next);
      }
      return next;
    case PatternNode::Kind::kChoice: {
      State choice;
      for (const PatternNode& part : node.parts) choice.others.push_back(AddNode(part, next));
      return Add(std::move(choice));
    }
    case PatternNode::Kind::kRepeat:
      return AddRepeat(node, next);
  }
  return next;
}

int TextRule::AddRepeat(const PatternNode& node, int next) {
  const PatternNode& inner = node.parts[0];
  if (node.most == PatternNode::kUnbounded) {
    const int loop = Add({});
    if (is_too_large_) return 0;
    const int body = AddNode(inner, loop);
    states_[static_cast<size_t>(loop)].others = {body, next};
    next = loop;
  }
  const int end = next;
  for (int i = node.least; i < node.most && !is_too_large_; ++i) {
    const int body = AddNode(inner, next);
    next = Add({.set = {}, .next = kEndOfText, .others = {body, end}});
  }
  for (int i = 0; i < node.least && !is_too_large_; ++i) next = AddNode(inner, next);
  return next;
}

// From the end backwards, until nothing is added.
void TextRule::FindLiving() {
  std::vector<std::vector<int>> before(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (!state.set.empty()) before[static_cast<size_t>(state.next)].push_back(static_cast<int>(i));
    for (const int other : state.others) {
      before[static_cast<size_t>(other)].push_back(static_cast<int>(i));
    }
  }
  lives_.assign(states_.size(), false);
  std::vector<int> found = {0};
  lives_[0] = true;
  while (!found.empty()) {
    const int state = found.back();
    found.pop_back();
    for (const int from : before[static_cast<size_t>(state)]) {
      if (lives_[static_cast<size_t>(from)]) continue;
      lives_[static_cast<size_t>(from)] = true;
      found.push_back(from);
    }
  }
}

// Lengths up to the least one and as many more as there are states: a longer text that ends has a
// loop, without which it ends too.
void TextRule::FindLengths() {
  const size_t n_lengths = static_cast<size_t>(least_) + states_.size() + 1;
  n_length_words_ = n_lengths / kLengthBits + 1;
  lengths_.assign(states_.size() * n_length_words_, 0);
  std::vector<std::vector<int>> closed(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    std::vector<bool> is_in(states_.size(), false);
    if (!states_[i].set.empty()) Close(states_[i].next, &is_in, &closed[i]);
  }
  std::vector<size_t> with_set;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].set.empty() && lives_[i]) with_set.push_back(i);
  }
  lengths_[0] = 1;
  for (size_t n = 1; n < n_lengths; ++n) {
    for (const size_t i : with_set) {
      const bool leads = std::ranges::any_of(closed[i], [&](int to) {
        return (lengths_[static_cast<size_t>(to) * n_length_words_ + (n - 1) / kLengthBits] >>
                    ((n - 1) % kLengthBits) &
                1) != 0;
      });
      if (leads) lengths_[i * n_length_words_ + n / kLengthBits] |= 1ull << (n % kLengthBits);
    }
  }
}

// Adds the states that `state` stands for: those with a character, and the end.
void TextRule::Close(int state, std::vector<bool>* is_in, std::vector<int>* closed) const {
  std::vector<int> open = {state};
  while (!open.empty()) {
    const auto at = static_cast<size_t>(open.back());
    open.pop_back();
    if ((*is_in)[at] || !lives_[at]) continue;
    (*is_in)[at] = true;
    if (at == 0 || !states_[at].set.empty()) closed->push_back(static_cast<int>(at));
    open.insert(open.end(), states_[at].others.begin(), states_[at].others.end());
  }
}

StatusOr<TextRule> TextRule::Make(const std::optional<PatternNode>& pattern, int64_t least,
                                  int64_t most, int64_t* n_steps_left) {
  TextRule rule;
  rule.least_ = least;
  rule.most_ = most;
  if (least > most) {
    return Error(StatusCode::kInvalidArgument, "minLength {} is more than maxLength {}", least,
                 most);
  }
  if (!pattern) return rule;
  rule.states_.emplace_back();
  rule.start_ = rule.AddNode(*pattern, 0);
  if (rule.is_too_large_) {
    return Error(StatusCode::kInvalidArgument,
                 "a pattern repeats more than {} characters; make it simpler", kMostStates);
  }
  rule.FindLiving();
  const bool has_lengths = least > 0 || most != kAnyLength;
  const int64_t n_states = std::ssize(rule.states_);
  *n_steps_left -= n_states * (has_lengths ? std::min(least, kMostLeastBesidePattern) + n_states
                                           : kStepsOfState);
  if (*n_steps_left < 0) {
    return Error(StatusCode::kInvalidArgument,
                 "the patterns and the lengths beside them take too long to prepare; make them "
                 "fewer or simpler");
  }
  if (has_lengths) {
    if (least > kMostLeastBesidePattern) {
      return Error(StatusCode::kInvalidArgument,
                   "minLength {} beside a pattern is not supported, at most {} is", least,
                   kMostLeastBesidePattern);
    }
    rule.FindLengths();
  }
  TextRuleWalk walk(&rule);
  if (!rule.lives_[static_cast<size_t>(rule.start_)] || !walk.CanEnd(walk.start(), 0)) {
    return Error(StatusCode::kInvalidArgument, "no text is of the pattern{}; change one of them",
                 has_lengths ? " and of the lengths beside it" : "");
  }
  return rule;
}

int64_t TextRule::n_bytes() const {
  int64_t n_bytes = std::ssize(lengths_) * static_cast<int64_t>(sizeof(uint64_t));
  for (const State& state : states_) {
    n_bytes += static_cast<int64_t>(sizeof(State) + state.set.size() * sizeof(CodeRange) +
                                    state.others.size() * sizeof(int));
  }
  return n_bytes;
}

bool TextRule::Takes(std::string_view text) const {
  TextRuleWalk walk(this);
  int place = walk.start();
  int64_t n_characters = 0;
  for (size_t pos = 0; pos < text.size(); ++n_characters) {
    const Utf8Char next = ReadUtf8(text, pos);
    if (next.state != Utf8Char::State::kWhole) return false;
    pos += static_cast<size_t>(next.n_bytes);
    place = walk.Step(place, next.code);
    if (place == TextRuleWalk::kNowhere) return false;
  }
  return walk.MayEnd(place, n_characters);
}

TextRuleWalk::TextRuleWalk(const TextRule* rule) : rule_(rule) {
  if (!rule->has_pattern()) return;
  std::vector<bool> is_in(rule->states_.size(), false);
  std::vector<int> states;
  rule->Close(rule->start_, &is_in, &states);
  Enter(std::move(states));
}

int TextRuleWalk::Enter(std::vector<int> states) {
  std::ranges::sort(states);
  if (places_.size() >= kMostPlaces) {
    const auto known = by_states_.find(states);
    return known == by_states_.end() ? kNowhere : known->second;
  }
  const auto [at, is_new] = by_states_.try_emplace(states, static_cast<int>(places_.size()));
  if (is_new) {
    Place place;
    place.is_end = !states.empty() && states.front() == 0;
    place.states = std::move(states);
    places_.push_back(std::move(place));
  }
  return at->second;
}

void TextRuleWalk::Explore(int place) {
  if (places_[static_cast<size_t>(place)].is_explored) return;
  const std::vector<int> states = places_[static_cast<size_t>(place)].states;
  // Between two borders all characters lead to the same states.
  std::set<char32_t> borders;
  for (const int state : states) {
    for (const CodeRange& range : rule_->states_[static_cast<size_t>(state)].set) {
      borders.insert(range.first);
      borders.insert(range.last + 1);
    }
  }
  std::vector<Way> ways;
  for (auto border = borders.begin(); border != borders.end() && std::next(border) != borders.end();
       ++border) {
    std::vector<bool> is_in(rule_->states_.size(), false);
    std::vector<int> reached;
    for (const int state : states) {
      const TextRule::State& from = rule_->states_[static_cast<size_t>(state)];
      const bool has = std::ranges::any_of(from.set, [&](const CodeRange& range) {
        return range.first <= *border && *border <= range.last;
      });
      if (has) rule_->Close(from.next, &is_in, &reached);
    }
    if (reached.empty()) continue;
    const int to = Enter(std::move(reached));
    if (to == kNowhere) continue;
    if (!ways.empty() && ways.back().to == to && ways.back().last + 1 == *border) {
      ways.back().last = *std::next(border) - 1;
    } else {
      ways.push_back({*border, *std::next(border) - 1, to});
    }
  }
  Place& explored = places_[static_cast<size_t>(place)];
  explored.ways = std::move(ways);
  explored.is_explored = true;
}

int TextRuleWalk::Step(int place, char32_t code) {
  if (!rule_->has_pattern()) return place;
  Explore(place);
  const std::vector<Way>& ways = places_[static_cast<size_t>(place)].ways;
  const auto way = std::ranges::lower_bound(ways, code, {}, &Way::last);
  return way != ways.end() && way->first <= code ? way->to : kNowhere;
}

bool TextRuleWalk::CanEndBehind(int place, char32_t first, char32_t last, int64_t n_characters) {
  if (!rule_->has_pattern()) return CanEnd(place, n_characters + 1);
  Explore(place);
  const std::vector<Way>& ways = places_[static_cast<size_t>(place)].ways;
  for (auto way = std::ranges::lower_bound(ways, first, {}, &Way::last);
       way != ways.end() && way->first <= last; ++way) {
    if (CanEnd(way->to, n_characters + 1)) return true;
  }
  return false;
}

void TextRuleWalk::Forget(std::span<int* const> kept) {
  if (places_.size() < kMostPlaces / 2) return;
  std::vector<std::vector<int>> states = {places_[0].states};
  for (const int* place : kept) states.push_back(places_[static_cast<size_t>(*place)].states);
  places_.clear();
  by_states_.clear();
  Enter(std::move(states[0]));
  for (size_t i = 0; i < kept.size(); ++i) *kept[i] = Enter(std::move(states[i + 1]));
}

bool TextRuleWalk::MayEnd(int place, int64_t n_characters) const {
  if (n_characters < rule_->least() || n_characters > rule_->most()) return false;
  return !rule_->has_pattern() || places_[static_cast<size_t>(place)].is_end;
}

bool TextRuleWalk::CanEnd(int place, int64_t n_characters) {
  if (n_characters > rule_->most()) return false;
  if (rule_->lengths_.empty()) return true;
  Place& at = places_[static_cast<size_t>(place)];
  if (at.lengths.empty()) {
    at.lengths.assign(rule_->n_length_words_, 0);
    for (const int state : at.states) {
      for (size_t word = 0; word < at.lengths.size(); ++word) {
        at.lengths[word] |=
            rule_->lengths_[static_cast<size_t>(state) * rule_->n_length_words_ + word];
      }
    }
  }
  const int64_t least = std::max<int64_t>(0, rule_->least() - n_characters);
  const int64_t n_known = static_cast<int64_t>(at.lengths.size()) * kLengthBits;
  const int64_t most = std::min(rule_->most() - n_characters, n_known - 1);
  for (int64_t n = least; n <= most; ++n) {
    if ((at.lengths[static_cast<size_t>(n / kLengthBits)] >> (n % kLengthBits) & 1) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace kvlathe

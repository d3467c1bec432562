#include "engine/drafts/ngram_drafter.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace kvlathe {
namespace {

constexpr size_t kFirstPlaces = 1024;

}  // namespace

// First the mean of all, then one that forgets.
void NgramDrafter::HitRate::Note(bool is_hit) {
  constexpr int kRemembered = 24;
  n_seen = std::min(n_seen + 1, kRemembered);
  share += ((is_hit ? 1.0 : 0.0) - share) / (n_seen + 1);
}

NgramDrafter::NgramDrafter(const DraftOptions& options)
    : options_(options), places_(options.max_match - options.min_match + 1) {
  KVL_CHECK(options.min_match >= 1 && options.min_match <= options.max_match);
  for (std::vector<int32_t>& places : places_) places.assign(kFirstPlaces, 0);
}

NgramDrafter::HitRate& NgramDrafter::RateOf(int n_matched) {
  return rates_[std::min(n_matched, DraftOptions::kLongestMatch)];
}

size_t NgramDrafter::PlaceIdx(std::span<const int32_t> ngram) const {
  uint64_t hash = 0;
  for (const int32_t token : ngram) hash = MixBits(hash + static_cast<uint32_t>(token) + 1);
  return hash & (places_.front().size() - 1);
}

void NgramDrafter::Enter(std::span<const int32_t> tokens, int64_t end, Match* newest) {
  for (int n = options_.max_match; n >= options_.min_match; --n) {
    if (n > end) continue;
    const std::span<const int32_t> ngram = tokens.subspan(end - n, n);
    int32_t& place = PlacesOf(n)[PlaceIdx(ngram)];
    const int32_t before = place;
    place = static_cast<int32_t>(end);
    if (newest == nullptr || newest->next >= 0 || before == 0) continue;
    // Another n-gram may have the same hash.
    if (std::ranges::equal(ngram, tokens.subspan(before - n, n))) *newest = {before, n};
  }
}

void NgramDrafter::MakeRoom(std::span<const int32_t> tokens) {
  size_t n_places = places_.front().size();
  while (n_places < kMostPlaces && n_places < 2 * tokens.size()) n_places *= 2;
  if (n_places == places_.front().size()) return;
  for (std::vector<int32_t>& places : places_) places.assign(n_places, 0);
  for (int64_t end = 1; end <= n_read_; ++end) Enter(tokens, end, nullptr);
}

void NgramDrafter::Read(std::span<const int32_t> tokens, int64_t n_given) {
  MakeRoom(tokens);
  for (; n_read_ < std::ssize(tokens); ++n_read_) {
    const bool is_hit = match_.next >= 0 && tokens[match_.next] == tokens[n_read_];
    if (match_.next >= 0 && n_read_ >= n_given) RateOf(match_.n_tokens).Note(is_hit);
    Match newest;
    Enter(tokens, n_read_ + 1, &newest);
    if (is_hit) {
      match_ = {match_.next + 1, match_.n_tokens + 1};
      if (match_.n_tokens >= newest.n_tokens) continue;
    }
    match_ = newest;
  }
}

std::vector<int32_t> NgramDrafter::Propose(std::span<const int32_t> tokens, int64_t n_given,
                                           int n_most) {
  if (tokens.size() > std::numeric_limits<int32_t>::max()) return {};
  Read(tokens, n_given);
  std::vector<int32_t> guesses;
  if (match_.next < 0) return guesses;
  double is_right = 1, n_right = 0;  // likely: the next guess, and how many are
  for (int i = 0; i < std::min(n_most, options_.n_tokens); ++i) {
    is_right *= RateOf(match_.n_tokens + i).share;
    if (is_right < kGuessCost) break;
    n_right += is_right;
    // Behind the text are the guesses: what repeats itself does so again.
    const int64_t from = match_.next + i, n = std::ssize(tokens);
    guesses.push_back(from < n ? tokens[from] : guesses[from - n]);
  }
  const double cost = kFirstGuessCost + kGuessCost * static_cast<double>(guesses.size());
  if (n_right < cost) guesses.clear();
  return guesses;
}

}  // namespace kvlathe

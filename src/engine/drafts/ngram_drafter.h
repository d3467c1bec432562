// Guesses that a text goes on as it did before: prompt-lookup decoding, as vLLM's "ngram" and
// llama.cpp's "lookup" have it (A. Saxena, 2023).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafts/drafter.h"

namespace kvlathe {

// What followed the newest earlier occurrence of the last tokens is copied: of the last max_match,
// or of fewer down to min_match. While the text goes on as it was copied, the place is kept, and
// the occurrence counts as longer.
//
// How many guesses there are depends on how often those before were right. For every length of an
// occurrence the share of right guesses is measured at every token that was generated, also where
// nothing was proposed. Each guess costs a row of the step, and all of them together that the step
// has several; guesses are made as long as they are likely to save more than that. So a text that
// never repeats itself has none after a while, and one that begins to gets them again.
//
// Where n-grams were seen is a table for each length, by hash: a token costs a look-up and a store
// in each. Tables grow with the text up to kMostPlaces; from there on newer n-grams take the places
// of older ones. So a sequence takes (max_match - min_match + 1) * 256 KiB at most.
class NgramDrafter : public Drafter {
 public:
  static constexpr size_t kMostPlaces = size_t{1} << 16;
  // Of the time of a step without guesses: what each guess adds, and what the first adds to that.
  // Constants, not what a clock says, so that a request is cut into the same steps every time.
  static constexpr double kGuessCost = 0.1;
  static constexpr double kFirstGuessCost = 0.15;

  explicit NgramDrafter(const DraftOptions& options);

  std::vector<int32_t> Propose(std::span<const int32_t> tokens, int64_t n_given,
                               int n_most) override;

 private:
  // An earlier place in the text.
  struct Match {
    int64_t next = -1;  // the token that came behind it; negative: there is no such place
    int n_tokens = 0;   // in front of it that are the newest ones of the text
  };
  // The share of right guesses behind matches of one length.
  struct HitRate {
    double share = 0.5;
    int n_seen = 0;

    void Note(bool is_hit);
  };

  void Read(std::span<const int32_t> tokens, int64_t n_given);
  // Enters the n-grams that end with the token before `end` and finds those that did before.
  void Enter(std::span<const int32_t> tokens, int64_t end, Match* newest);
  void MakeRoom(std::span<const int32_t> tokens);
  std::vector<int32_t>& PlacesOf(int n) { return places_[n - options_.min_match]; }
  size_t PlaceIdx(std::span<const int32_t> ngram) const;
  HitRate& RateOf(int n_matched);

  DraftOptions options_;
  int64_t n_read_ = 0;
  Match match_;  // of the text that has been read
  // By length from min_match on: [capacity], the end of the newest n-gram with that hash; 0: none.
  std::vector<std::vector<int32_t>> places_;
  std::array<HitRate, DraftOptions::kLongestMatch + 1> rates_;  // by length of the match
};

}  // namespace kvlathe

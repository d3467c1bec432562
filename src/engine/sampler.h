// A sampler draws the next token from logits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/token_constraint.h"
#include "machine/plans.h"

namespace kvlathe {

// Names and meanings follow llama.cpp and, for presence and frequency, the OpenAI API.
struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int top_k = 0;          // 0: all tokens
  float top_p = 1;        // nucleus: the smallest set of tokens with at least this probability
  float min_p = 0;        // tokens at least this likely in relation to the likeliest; 0: all
  // Positive logits of tokens among the last repeat_last_n of prompt and output are divided by it,
  // others multiplied; 1: off.
  float repetition_penalty = 1;
  int repeat_last_n = 64;               // -1: all of prompt and output, 0: none
  float presence_penalty = 0;           // taken from the logit of every token of the output
  float frequency_penalty = 0;          // the same, times its count in the output
  std::map<int32_t, float> logit_bias;  // added to the logit of a token id
  uint64_t seed = 0;

  // kInvalidArgument with the flag and what it may be. CheckVocabulary: an id of logit_bias is not
  // in [0, vocab_size).
  Status Check() const;
  Status CheckVocabulary(int vocab_size) const;
};

// The order is constraint, logit_bias, repetition, presence and frequency penalties, top-k, top-p,
// min-p, temperature, draw, as in llama.cpp: top-p and min-p look at the probabilities of
// temperature 1. Greedy choice comes after the penalties. A sampler of the same seed draws the same
// tokens from the same logits, whatever else runs beside it.
class Sampler {
 public:
  // The prompt counts for repetition_penalty.
  explicit Sampler(SamplingParams params, std::span<const int32_t> prompt = {});
  // Goes on where another sampler ended: tokens that were there before, in their order and each as
  // prompt or output, and how many draws it made.
  void EnterBefore(std::span<const int32_t> tokens, bool is_output);
  void set_n_draws(uint64_t n_draws) { n_draws_ = n_draws; }
  uint64_t n_draws() const { return n_draws_; }

  // `logits` has an entry for every id of prompt and logit_bias. The token counts as output from
  // then on. kDataLoss, and nothing is drawn, when one of them is NaN or infinite: the first token
  // id would be as good as any. `constraint` (null: none) masks them before anything else; it is
  // not told the token. kInternal when it masks all of them.
  StatusOr<int32_t> Sample(std::span<const float> logits, TokenConstraint* constraint = nullptr);
  // Whether the likeliest tokens alone decide: nothing adjusts logits, and the choice is greedy or
  // top-k has no more than LargestPlan::kLargest of them.
  bool TakesLikeliest(const TokenConstraint* constraint) const;
  // The same token that Sample draws of all logits, where it TakesLikeliest.
  StatusOr<int32_t> SampleLikeliest(const LargestNumbers& likeliest);

 private:
  std::span<const float> Adjusted(std::span<const float> logits, TokenConstraint* constraint);
  int32_t Draw(std::span<const float> logits);
  void KeepLikeliest(std::span<const float> logits, size_t n);
  std::optional<int32_t> DrawOfOrdered(std::span<const float> all, double uniform);
  void EnterWindow(int32_t token);

  SamplingParams params_;
  bool adjusts_;          // any bias or penalty
  uint64_t n_draws_ = 0;  // which is also the stream of the next one
  std::vector<float> adjusted_;
  std::vector<std::pair<float, int32_t>> candidates_;
  std::vector<int32_t> window_;                 // a ring of the last repeat_last_n tokens
  size_t oldest_ = 0;                           // in the ring, once it is full
  std::unordered_map<int32_t, int> in_window_;  // counts, of prompt and output
  std::unordered_map<int32_t, int> in_output_;
};

// Whether no number is NaN or infinite.
bool AreFinite(std::span<const float> numbers);

// The first index of the largest logit.
int32_t ArgMax(std::span<const float> logits);

}  // namespace kvlathe

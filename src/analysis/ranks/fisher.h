// Palu shares out ranks by Fisher information ("fisher_uniform" of the authors' code;
// docs/methods/palu.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/ranks/ranks.h"
#include "base/status.h"

namespace kvlathe {

// How much the loss of a text hangs on W_K and W_V of each layer: the mean over the elements of the
// matrix of sqrt(mean over sequences of gradient^2). Only their proportions matter.
struct FisherWeights {
  std::string model_hash;    // ModelHash()
  std::string token_source;  // "text:<hash of the token ids>"
  int64_t n_tokens = 0;
  std::vector<double> k;  // [n_layers]
  std::vector<double> v;
};

// One JSON object. Errors are those of WriteFileAtomically.
Status WriteFisherWeights(const FisherWeights& weights, const std::string& path);
// kDataLoss, with the way out, if the file is damaged or of another kind.
StatusOr<FisherWeights> ReadFisherWeights(const std::string& path);
// kInvalidArgument, with the way out, if weights read from `path` belong to another model.
Status CheckFisherMatch(const FisherWeights& weights, const std::string& path, int n_layers,
                        const std::string& model_hash);

// `total` in shares proportional to the weights, rounded down, none above `cap`; then one more for
// each, largest remainder first, as often as it takes, until all is given out or every share is at
// its cap. Weights of 0 in all places count as equal.
std::vector<int64_t> ShareByWeight(std::span<const double> weights, int64_t cap, int64_t total);

// Allocations by falling rank of all W_K and W_V together. Each matrix is one share, capped at its
// full rank; its heads get equal parts of it (integer division), rounded to the nearest multiple of
// `round` (a half to the even one), at least one multiple and at most head_dim.
class FisherLadder {
 public:
  FisherLadder(const FisherWeights* weights, int n_kv_heads, int head_dim, int round);

  // Level 0 is full rank; at level l all matrices together get l ranks less. What they keep after
  // rounding falls with the level, but for the paradox of largest remainders: by one more rank for
  // all, one of them can lose one.
  int n_levels() const { return static_cast<int>(full_total_) + 1; }
  RankAllocation AllocationAt(int level) const;
  // A level that removes at most `rate` of all elements, where the next one removes more.
  int LastLevelWithin(double rate) const;

 private:
  const FisherWeights* weights_;
  int n_kv_heads_, head_dim_, round_;
  int64_t full_total_;
};

}  // namespace kvlathe

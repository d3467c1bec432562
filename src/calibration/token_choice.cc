#include "calibration/token_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvlathe {

bool IsHeldBack(int64_t sequence_idx, int64_t n_sequences) {
  constexpr int64_t kEvery = 5;
  if (n_sequences < kEvery) return n_sequences > 1 && sequence_idx == n_sequences - 1;
  return sequence_idx % kEvery == kEvery - 1;
}

int64_t CalibrationTokens(int64_t n_weights) {
  constexpr int64_t kMost = 24576, kLeast = 3072, kWeights = int64_t{1} << 27;
  if (n_weights <= kWeights) return kMost;
  const double share = static_cast<double>(kWeights) / static_cast<double>(n_weights);
  return std::max(kLeast, static_cast<int64_t>(static_cast<double>(kMost) * std::sqrt(share)));
}

TokenSequences ChooseSequences(TokenSequences sequences, int64_t n_tokens) {
  if (sequences.empty()) return sequences;
  const int64_t n = std::ssize(sequences), length = std::ssize(sequences.front());
  const int64_t n_wanted = std::max<int64_t>(1, (n_tokens + length / 2) / length);
  if (n_wanted >= n) return sequences;
  TokenSequences chosen;
  for (int64_t i = 0; i < n_wanted; ++i) chosen.push_back(std::move(sequences[i * n / n_wanted]));
  return chosen;
}

}  // namespace kvlathe

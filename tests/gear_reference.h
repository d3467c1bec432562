// GEAR (Kang et al., 2024, "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless
// Generative Inference of LLM") is transcribed here in double and plain loops, for tests:
// X ~ D + L + S with
//   S = Filter_s(X)   the share s of the elements farthest out, as they are,
//   D = Quant_b(X - S) by a backbone,
//   L ~ X - D - S     a low-rank part of every head by the power iteration of the paper.
// It shares no code with the engine and rounds nothing to 16 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

struct GearSettings {
  // kKcvt: one group for each channel of K over the block, and one for each token of V over all
  // heads. kKivi: groups of `group` tokens of a channel of K, of `group` channels of a token of V.
  enum class Backbone { kKcvt, kKivi } backbone = Backbone::kKcvt;
  int bits = 4;
  int group = 64;    // kivi
  double share = 0;  // s; 0: no outliers
  int rank = 0;      // columns of L; 0: no low-rank part
  int loops = 3;     // of the power iteration
};

// The parts of K or of V of one block of positions, [head][position][channel].
struct GearParts {
  std::vector<Matrix> quantized, sparse, low_rank;  // D, S and L
  std::vector<std::vector<std::vector<bool>>> is_outlier;
};

// `rows`: K or V of the block. The power iteration starts from numbers that `seed` draws.
GearParts CompressByGear(const GearSettings& settings, bool is_key, const std::vector<Matrix>& rows,
                         uint64_t seed);

}  // namespace kvlathe::testing

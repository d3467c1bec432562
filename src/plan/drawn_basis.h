// Draws ranks, bits and maps for benchmarks without a model and for models with random weights,
// where no calibration means anything.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/bases/basis.h"
#include "analysis/ranks/ranks.h"
#include "base/status.h"
#include "kv/spec/spec.h"
#include "plan/model_facts.h"

namespace kvlathe {

// Draws the ranks of n pairs (rank_k, rank_v), in one list of 2 n, with a coefficient of variation
// of about 0.3. Each is in [16, head_dim], and their sum is the least multiple of 16 that is not
// below 2 n (1 - rate) head_dim.
std::vector<int> DrawRanks(int n, int head_dim, double rate, uint64_t seed);

// Draws the ranks and bits of n heads whose codes take 1 / ratio of 16-bit rows, for ratios from 2
// to 64. lathe would allocate them so if spectra fell exponentially, each pair at a rate of its own
// (coefficient of variation about 0.3).
struct DrawnRows {
  bool has_classes = false;
  bool joins_values = false;  // rows of 2 head_dim channels (MappedKeys)
};
std::vector<HeadRanks> DrawSplits(int n, int head_dim, double ratio, uint64_t seed,
                                  const DrawnRows& rows = {});

// The same without classes, with the bits of runs under pressure, which take 1 / under_pressure.
// kInvalidArgument where those are no fewer, or would be less than one bit for 16 channels.
StatusOr<std::vector<HeadRanks>> DrawPressedSplits(int n, int head_dim, double ratio,
                                                   double under_pressure, uint64_t seed,
                                                   const DrawnRows& rows = {});

// The ranks that ranks=uniform gives n heads of any model. Nothing about them is random.
std::vector<HeadRanks> UniformRanks(int n, int head_dim, double rate);

// Draws maps and their ranks as `bench attention` does, to find what a basis costs on a model with
// random weights. The ranks are those of no method: every basis gets the same, so their times do
// not compare methods. The form of keys is mapped or latent; n_kv_heads are heads of the cache,
// head_dim is of their rows, and heads_per_latent divides n_kv_heads.
ModelBasis DrawRandomBasis(int n_layers, int n_kv_heads, int head_dim, double rate, uint64_t seed,
                           const Keys& keys = MappedKeys{});
// Does the same with given ranks, which are those of all heads that share latents, or of each head.
ModelBasis DrawRandomBasis(int n_layers, int n_kv_heads, int head_dim,
                           const std::vector<HeadRanks>& ranks, uint64_t seed,
                           const Keys& keys = MappedKeys{});
// Does the same with ranks and bits by ratio (DrawSplits), of classes of entries if asked.
ModelBasis DrawRandomSplitBasis(int n_layers, int n_kv_heads, int head_dim, double ratio,
                                uint64_t seed, const Keys& keys = MappedKeys{},
                                bool has_classes = false);

// Draws maps in the shapes that the spec asks for, for a model with random weights. The spec has a
// basis whose ranks are chosen before a prompt. The error is kInvalidArgument for ranks that nobody
// can draw, and kUnimplemented for resident=full.
StatusOr<ModelBasis> DrawBasis(const Spec& spec, const ModelFacts& model);
// Refuses a basis whose ranks nobody can draw: ranks=fisher.
Status CheckDrawnRanks(const Spec& spec);

}  // namespace kvlathe

#include "evaluation/bench/bench_attention_layout.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "plan/drawn_basis.h"

namespace kvlathe {
namespace {

CacheLayout LayersOf(const CacheLayout& model, int n_layers) {
  CacheLayout layout{n_layers, model.n_kv_heads, model.head_dim, 0, {}, {}, model.seal};
  layout.keys = model.keys;
  for (int l = 0; l < n_layers; ++l) {
    const int of_model =
        n_layers < model.n_layers ? l * model.n_layers / n_layers : l % model.n_layers;
    for (int g = 0; g < model.n_kv_heads; ++g) {
      layout.shapes.push_back(model.shape(of_model, g));
      if (!model.storages.empty()) layout.storages.push_back(model.storage(of_model, g));
    }
  }
  return layout;
}

}  // namespace

std::vector<int> DrawLengths(const AttentionBenchOptions& options, int context, size_t n) {
  Random random(options.seed, 2);
  std::vector<int> lengths(n);
  for (int& length : lengths) {
    const double shrink = std::pow(options.length_ratio, random.Uniform());
    length = std::max(1, static_cast<int>(context / shrink));
  }
  return lengths;
}

CacheLayout DrawLayout(const AttentionBenchOptions& options, const BenchCache& spec, int n_layers) {
  if (spec.of_model.has_value()) return LayersOf(*spec.of_model, n_layers);
  CacheLayout layout{n_layers, options.n_kv_heads, options.head_dim, 0, {}, {}, spec.seal};
  const int n_pairs = n_layers * options.n_kv_heads;
  if (spec.ratio > 0) {
    const DrawnRows rows = {layout.HasClasses(), JoinsValues(spec.keys)};
    for (const HeadRanks& r :
         DrawSplits(n_pairs, options.head_dim, spec.ratio, options.seed, rows)) {
      layout.AddHead(r, DType::kBf16);
    }
    return layout;
  }
  if (spec.has_uniform_ranks) {
    for (const HeadRanks& r : UniformRanks(n_pairs, options.head_dim, spec.rate)) {
      layout.shapes.push_back({r.rank_k, r.rank_v, DType::kBf16});
    }
    return layout;
  }
  const std::vector<int> ranks = DrawRanks(n_pairs, options.head_dim, spec.rate, options.seed);
  for (int i = 0; i < n_pairs; ++i) {
    layout.shapes.push_back({ranks[2 * i], ranks[2 * i + 1], DType::kBf16});
  }
  return layout;
}

}  // namespace kvlathe

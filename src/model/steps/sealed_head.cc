#include "model/steps/sealed_head.h"

namespace kvlathe {

SealedHead SealedHeadOf(const Layer& layer, const CacheLayout& cache_layout, int kv_head_idx,
                        std::span<const SealedRun> runs, const KeyRotationId& rotation) {
  const int n_heads = cache_layout.n_heads_per_run(), first = kv_head_idx / n_heads * n_heads;
  int layer_rank_v = 0;
  for (int g = first; g < first + n_heads; ++g) {
    layer_rank_v += cache_layout.shape(layer.idx, g).rank_v;
  }
  return {.format = cache_layout.seal->format,
          .storage = cache_layout.storage(layer.idx, kv_head_idx),
          .kv_head_idx = kv_head_idx - first,
          .n_kv_heads = n_heads,
          .layer_rank_v = layer_rank_v,
          .runs = runs,
          .codebooks = layer.codebooks,
          .rotation = rotation};
}

}  // namespace kvlathe

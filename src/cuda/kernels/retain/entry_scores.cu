#include <algorithm>

#include "cuda/kernels/retain/entry_scores.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;

struct ScoreParams {
  const EntryScoreItem* items = nullptr;
};

KVL_DEVICE int VisibleTo(const EntryScoreItem& item, int row) {
  const int n = item.first_visible + row / item.gqa_group;
  return n < 0 ? 0 : n < item.n_entries ? n : item.n_entries;
}

KVL_DEVICE const int32_t* PositionsOf(const EntryScoreItem& item, int block) {
  return reinterpret_cast<const int32_t*>(item.table + block * EntryTable::BlockBytes(true));
}

// A maximum or a sum over the block; `shared` has a float for each warp.
template <bool kIsMax>
KVL_DEVICE float OverBlock(float x, float* shared) {
  const float of_warp = kIsMax ? MaxOfWarp(x) : SumOfWarp(x);
  SyncBlock();
  if (Lane() == 0) shared[WarpIdx()] = of_warp;
  SyncBlock();
  float all = shared[0];
  for (int i = 1; i < WarpCount(); ++i) {
    if (kIsMax) {
      all = all > shared[i] ? all : shared[i];
    } else {
      all += shared[i];
    }
  }
  return all;
}

// A block turns the scores of one row of one item into its noisy probabilities.
KVL_KERNEL(kThreads) NoiseKernel(KVL_PARAMS(ScoreParams) p) {
  const EntryScoreItem& item = p.items[BlockIdxY()];
  const int row = BlockIdx();
  if (!item.has_noise || row >= item.n_rows) return;
  auto* const shared = reinterpret_cast<float*>(Shared());
  const int token = row / item.gqa_group, n_visible = VisibleTo(item, row);
  const uint32_t key = QueryKey(item.noise, item.noise.first_head + row % item.gqa_group,
                                item.noise.first_position + token);
  const float inverse = 1.0f / item.noise.TemperatureOf(token);
  float* const scores = item.scores + row * item.stride;
  float max = -INFINITY;
  for (int e = ThreadIdx(); e < n_visible; e += kThreads) {
    const int32_t position = PositionsOf(item, e / kBlockSize)[e % kBlockSize];
    const uint32_t h = HashScore(key, static_cast<uint32_t>(position)) >> 9;
    const float u = static_cast<float>(2 * h + 1) * 0x1p-24f;
    scores[e] = (scores[e] * item.sm_scale - logf(-logf(u))) * inverse;
    max = scores[e] > max ? scores[e] : max;
  }
  max = OverBlock<true>(max, shared);
  float sum = 0;
  for (int e = ThreadIdx(); e < n_visible; e += kThreads) sum += expf(scores[e] - max);
  const float inverse_sum = 1.0f / OverBlock<false>(sum, shared);
  for (int e = ThreadIdx(); e < n_visible; e += kThreads) {
    scores[e] = expf(scores[e] - max) * inverse_sum;
  }
}

// A thread adds the probabilities of all rows to the sum of one entry.
KVL_KERNEL(kThreads) AddKernel(KVL_PARAMS(ScoreParams) p) {
  const EntryScoreItem& item = p.items[BlockIdxY()];
  const int e = BlockIdx() * kThreads + ThreadIdx();
  if (e >= item.n_entries) return;
  int64_t units = 0;
  for (int row = 0; row < item.n_rows; ++row) {
    if (e >= VisibleTo(item, row)) continue;
    const float score = item.scores[row * item.stride + e];
    const float probability =
        item.has_noise ? score
                       : expf(score * item.sm_scale - item.row_max[row]) / item.row_sum[row];
    // A probability is at most 1 but for rounding; in this order NaN is a number as well.
    const float scaled = probability / static_cast<float>(kScoreUnit);
    units += static_cast<int64_t>(rintf(scaled < 0x1p30f ? scaled : 0x1p30f));
  }
  std::byte* const block = item.table + e / kBlockSize * EntryTable::BlockBytes(true);
  auto* const sums = reinterpret_cast<int64_t*>(block + kBlockSize * sizeof(int32_t));
  if (units != 0) AtomicAdd64(&sums[e % kBlockSize], units);
}

}  // namespace

void AddEntryScores(cudaStream_t stream, const EntryScoreItem* items, int n_items, int max_rows,
                    int max_entries) {
  const ScoreParams params = {items};
  Launch(stream, NoiseKernel,
         {.n_blocks = max_rows,
          .n_threads = kThreads,
          .shared_bytes = kThreads / kWarp * sizeof(float),
          .n_blocks_y = n_items},
         params);
  Launch(stream, AddKernel,
         {.n_blocks = (max_entries + kThreads - 1) / kThreads,
          .n_threads = kThreads,
          .n_blocks_y = n_items},
         params);
}

}  // namespace kvlathe::cuda

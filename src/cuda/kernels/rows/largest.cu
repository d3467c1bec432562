#include "cuda/kernels/rows/largest.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int64_t kSharedBytes = kSortedTogether * int64_t{sizeof(uint64_t)};

// Bitonic sort of kSortedTogether words in shared memory, falling (Batcher 1968). All threads of
// the block meet here, and the words are in order for all of them behind it.
KVL_DEVICE void SortFalling(uint64_t* words) {
  for (int size = 2; size <= kSortedTogether; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      SyncBlock();
      for (int i = ThreadIdx(); i < kSortedTogether / 2; i += kThreads) {
        const int first = i / step * 2 * step + i % step, second = first + step;
        const bool falls = (first & size) == 0;
        const uint64_t a = words[first], b = words[second];
        if ((a < b) == falls) {
          words[first] = b;
          words[second] = a;
        }
      }
    }
  }
  SyncBlock();
}

// A block takes kSortedTogether numbers of a row.
KVL_KERNEL(kThreads) OfPartsKernel(KVL_PARAMS(LargestParams) p) {
  auto* const words = reinterpret_cast<uint64_t*>(Shared());
  const int row = BlockIdxY(), first = BlockIdx() * kSortedTogether;
  bool all_finite = true;
  for (int i = ThreadIdx(); i < kSortedTogether; i += kThreads) {
    const int place = first + i;
    words[i] = 0;
    if (place >= p.n_dims) continue;
    const float x = p.rows[int64_t{row} * p.n_dims + place];
    all_finite = all_finite && (std::bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
    words[i] = RankedNumber::Of(x, place);
  }
  if (!all_finite) AtomicAdd(&p.not_finite[row], uint32_t{1});
  SortFalling(words);
  if (ThreadIdx() < kLargest) {
    p.of_parts[(int64_t{row} * GridDim() + BlockIdx()) * kLargest + ThreadIdx()] =
        words[ThreadIdx()];
  }
}

// A block takes what is left of a row, so many words at a time beside the best so far.
KVL_KERNEL(kThreads) OfRowsKernel(KVL_PARAMS(LargestParams) p) {
  auto* const words = reinterpret_cast<uint64_t*>(Shared());
  const int row = BlockIdx(), n_words = LargestParts(p.n_dims) * kLargest;
  const uint64_t* const from = p.of_parts + int64_t{row} * n_words;
  int n_taken = 0;
  for (int n_kept = 0; n_taken < n_words; n_kept = kLargest) {
    for (int i = n_kept + ThreadIdx(); i < kSortedTogether; i += kThreads) {
      const int at = n_taken + i - n_kept;
      words[i] = at < n_words ? from[at] : 0;
    }
    n_taken += kSortedTogether - n_kept;
    SortFalling(words);
  }
  if (ThreadIdx() < kLargest) p.largest[row * kLargest + ThreadIdx()] = words[ThreadIdx()];
}

}  // namespace

void FindLargest(cudaStream_t stream, const LargestParams& params) {
  Launch(stream, OfPartsKernel,
         {.n_blocks = LargestParts(params.n_dims),
          .n_threads = kThreads,
          .shared_bytes = kSharedBytes,
          .n_blocks_y = params.n_rows},
         params);
  Launch(stream, OfRowsKernel,
         {.n_blocks = params.n_rows, .n_threads = kThreads, .shared_bytes = kSharedBytes}, params);
}

}  // namespace kvlathe::cuda

#include "cuda/rows/largest_finder.h"

#include "cuda/kernels/rows/largest.h"

namespace kvlathe {

std::vector<LargestNumbers> LargestFinder::Find(const LargestPlan& plan) {
  static_assert(LargestPlan::kLargest == cuda::kLargest);
  const int64_t n_rows = plan.n_rows, n_largest = n_rows * cuda::kLargest;
  const int64_t n_of_parts = n_largest * cuda::LargestParts(static_cast<int>(plan.n_dims));
  // Largest numbers, then whether all are finite, then those of the parts.
  const int64_t result_bytes =
      n_largest * int64_t{sizeof(uint64_t)} + (n_rows + 1) / 2 * 2 * int64_t{sizeof(uint32_t)};
  const int64_t n_bytes = result_bytes + n_of_parts * int64_t{sizeof(uint64_t)};
  if (!scratch_.EnsureSize(&memory_, n_bytes, "the largest logits").ok()) return {};
  memory_.Fill(scratch_.place(), std::byte{0}, result_bytes);
  std::byte* const at = memory_.At(scratch_.place());
  const cuda::LargestParams params = {
      .rows = memory_.As<const float>(plan.rows),
      .n_rows = static_cast<int>(n_rows),
      .n_dims = static_cast<int>(plan.n_dims),
      .of_parts = reinterpret_cast<uint64_t*>(at + result_bytes),
      .largest = reinterpret_cast<uint64_t*>(at),
      .not_finite = reinterpret_cast<uint32_t*>(at + n_largest * sizeof(uint64_t))};
  cuda::FindLargest(memory_.stream().get(), params);
  std::vector<uint64_t> results(result_bytes / sizeof(uint64_t));
  memory_.Download(scratch_.place(), std::as_writable_bytes(std::span(results)));
  const auto* const not_finite = reinterpret_cast<const uint32_t*>(results.data() + n_largest);
  std::vector<LargestNumbers> rows(n_rows);
  for (int64_t row = 0; row < n_rows; ++row) {
    rows[row].are_finite = not_finite[row] == 0;
    for (int64_t i = 0; i < std::min<int64_t>(cuda::kLargest, plan.n_dims); ++i) {
      const uint64_t ranked = results[row * cuda::kLargest + i];
      rows[row].numbers.push_back(
          {cuda::RankedNumber::Value(ranked), cuda::RankedNumber::Place(ranked)});
    }
  }
  return rows;
}

}  // namespace kvlathe

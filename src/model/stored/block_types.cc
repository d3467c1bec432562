#include "model/stored/block_types.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "io/gguf/ggml_types_quantize.h"

namespace kvlathe {
namespace {

struct TypePair {
  WeightType weight;
  GgmlType stored;
};
constexpr TypePair kPairs[] = {
    {WeightType::kQ4_0, GgmlType::kQ4_0},   {WeightType::kQ4_1, GgmlType::kQ4_1},
    {WeightType::kQ5_0, GgmlType::kQ5_0},   {WeightType::kQ5_1, GgmlType::kQ5_1},
    {WeightType::kQ8_0, GgmlType::kQ8_0},   {WeightType::kQ2_K, GgmlType::kQ2_K},
    {WeightType::kQ3_K, GgmlType::kQ3_K},   {WeightType::kQ4_K, GgmlType::kQ4_K},
    {WeightType::kQ5_K, GgmlType::kQ5_K},   {WeightType::kQ6_K, GgmlType::kQ6_K},
    {WeightType::kIq4Nl, GgmlType::kIq4Nl}, {WeightType::kIq4Xs, GgmlType::kIq4Xs},
    {WeightType::kMxfp4, GgmlType::kMxfp4},
};

}  // namespace

std::optional<WeightType> WeightTypeOf(GgmlType type) {
  const auto* const found = std::ranges::find(kPairs, type, &TypePair::stored);
  return found == std::end(kPairs) ? std::nullopt : std::optional(found->weight);
}

GgmlType StoredTypeOf(WeightType type) {
  const auto* const found = std::ranges::find(kPairs, type, &TypePair::weight);
  KVL_CHECK(found != std::end(kPairs));
  return found->stored;
}

WeightType FittingType(WeightType type, int64_t n_in, WeightType dense) {
  if (!HasBlocks(type)) return type;
  if (n_in % LayoutOf(StoredTypeOf(type)).block_values == 0) return type;
  return n_in % LayoutOf(GgmlType::kQ8_0).block_values == 0 ? WeightType::kQ8_0 : dense;
}

void WriteFloats(int64_t first_out, int64_t n_rows, const float* rows, Weight* matrix) {
  const int64_t n_in = matrix->n_in();
  if (!HasBlocks(matrix->type())) {
    return matrix->WriteRows(first_out, n_rows, DType::kF32, rows, n_in);
  }
  const GgmlType type = StoredTypeOf(matrix->type());
  const GgmlLayout& layout = LayoutOf(type);
  const int64_t row_bytes = n_in / layout.block_values * layout.block_bytes;
  std::vector<std::byte> blocks(n_rows * row_bytes);
  QuantizeBlocks(type, rows, n_rows * n_in, blocks.data());
  matrix->WriteBlocks(first_out, n_rows, blocks.data(), row_bytes);
}

}  // namespace kvlathe

// Products of many matrices at once are those of each by itself.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/linear/linear.h"
#include "io/gguf/ggml_types.h"
#include "io/gguf/ggml_types_quantize.h"
#include "machine/weight_type.h"

namespace kvlathe {
namespace {

constexpr int64_t kIn = 256, kOut = 150;

GgmlType GgmlTypeOf(WeightType type) {
  switch (type) {
    using enum WeightType;
    case kQ4_0:
      return GgmlType::kQ4_0;
    case kQ4_1:
      return GgmlType::kQ4_1;
    case kQ5_0:
      return GgmlType::kQ5_0;
    case kQ5_1:
      return GgmlType::kQ5_1;
    case kQ2_K:
      return GgmlType::kQ2_K;
    case kQ3_K:
      return GgmlType::kQ3_K;
    case kQ4_K:
      return GgmlType::kQ4_K;
    case kQ5_K:
      return GgmlType::kQ5_K;
    case kQ6_K:
      return GgmlType::kQ6_K;
    case kIq4Nl:
      return GgmlType::kIq4Nl;
    case kIq4Xs:
      return GgmlType::kIq4Xs;
    case kMxfp4:
      return GgmlType::kMxfp4;
    default:
      return GgmlType::kQ8_0;
  }
}

std::vector<float> Numbers(int64_t n, Random* random) {
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random->Normal());
  return values;
}

PackedMatrix RandomMatrix(WeightType type, Random* random) {
  PackedMatrix matrix = *PackedMatrix::Create(kOut, kIn, type);
  const std::vector<float> numbers = Numbers(kOut * kIn, random);
  if (!HasBlocks(type)) {
    matrix.PackRows(0, kOut, DType::kF32, numbers.data(), kIn);
    return matrix;
  }
  const GgmlLayout& layout = LayoutOf(GgmlTypeOf(type));
  const int64_t row_bytes = kIn / layout.block_values * layout.block_bytes;
  std::vector<std::byte> blocks(kOut * row_bytes);
  QuantizeBlocks(GgmlTypeOf(type), numbers.data(), kOut * kIn, blocks.data());
  matrix.PackBlocks({.n_rows = kOut, .rows = blocks.data(), .row_bytes = row_bytes});
  return matrix;
}

// Rows of five experts: many, few, one, and one row that two of them read.
struct Assignment {
  int expert;
  int64_t first_x, first_y, n_rows;
};
const std::vector<std::vector<Assignment>> kAssignments = {
    {{0, 0, 0, 1}, {2, 0, 1, 1}, {4, 0, 2, 1}},
    {{0, 0, 0, 3}, {1, 3, 3, 1}, {3, 4, 4, 9}},
    {{1, 0, 0, 70}, {2, 70, 70, 2}, {3, 72, 72, 33}, {4, 105, 105, 1}}};

void ExpectSameAsEachAlone(WeightType type, DType x_type, Isa isa, int n_workers) {
  SCOPED_TRACE(
      fmt::format("{} {} {} {}", WeightTypeName(type), DTypeName(x_type), IsaName(isa), n_workers));
  Random random(11);
  std::vector<PackedMatrix> experts;
  for (int e = 0; e < 5; ++e) experts.push_back(RandomMatrix(type, &random));
  const std::vector<float> bias = Numbers(kOut, &random);
  ThreadPool pool(n_workers);
  Linear linear(&pool, isa);
  linear.set_deterministic(true);  // of each alone; those of all at once always are
  for (const std::vector<Assignment>& assignment : kAssignments) {
    const Assignment& last = assignment.back();
    const int64_t n_x_rows = last.first_x + last.n_rows, n_y_rows = last.first_y + last.n_rows;
    const std::vector<float> numbers = Numbers(n_x_rows * kIn, &random);
    std::vector<std::byte> x(n_x_rows * kIn * SizeOf(x_type));
    ConvertFromFloat(x_type, numbers.data(), std::ssize(numbers), x.data());
    std::vector<float> y(n_y_rows * kOut, -1.0f), alone = y;
    std::vector<GroupedProducts::Item> items;
    for (const Assignment& a : assignment) {
      const float* const own_bias = a.expert % 2 == 0 ? bias.data() : nullptr;
      items.push_back({&experts[a.expert], own_bias, a.first_x, a.first_y, a.n_rows});
      linear.Run({.w = &experts[a.expert],
                  .n_rows = a.n_rows,
                  .x_type = x_type,
                  .x = x.data() + a.first_x * kIn * SizeOf(x_type),
                  .x_stride = kIn,
                  .bias = own_bias,
                  .y = alone.data() + a.first_y * kOut,
                  .y_stride = kOut});
    }
    linear.set_deterministic(false);
    linear.RunGrouped({items, x_type, x.data(), n_x_rows, y.data()});
    linear.set_deterministic(true);
    ASSERT_EQ(y, alone) << n_x_rows << " rows";
  }
}

TEST(GroupedProductsTest, HaveTheBitsOfEachProductAlone) {
  for (const WeightType type : kWeightTypes) {
    for (const DType x_type : {DType::kBf16, DType::kF32}) {
      if (!FormatOf(type).Multiplies(x_type)) continue;
      for (const Isa isa : AvailableIsas()) {
        ExpectSameAsEachAlone(type, x_type, isa, 1);
        ExpectSameAsEachAlone(type, x_type, isa, 3);
      }
    }
  }
}

TEST(GroupedProductsTest, NothingIsDoneWhereNoExpertHasRows) {
  ThreadPool pool(2);
  Linear linear(&pool, Isa::kScalar);
  float y = 5;
  linear.RunGrouped({.y = &y});
  EXPECT_EQ(y, 5);
}

}  // namespace
}  // namespace kvlathe

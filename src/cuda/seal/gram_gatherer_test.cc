// Grams on a GPU against those of the CPU.
#include "cuda/seal/gram_gatherer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cuda/testing/seal_on_device.h"

namespace kvlathe {
namespace {

constexpr int kDims = 48, kStride = 64;

std::vector<std::byte> BytesOf(const std::vector<float>& x, DType type) {
  std::vector<std::byte> bytes(x.size() * SizeOf(type));
  ConvertFromFloat(type, x.data(), std::ssize(x), bytes.data());
  return bytes;
}

// The sums of n_rows rows that a device holds in this type, added to what was there.
std::vector<float> GramOnCpu(const std::vector<std::byte>& rows, DType type, int n_rows,
                             std::vector<float> gram) {
  std::vector<float> row(kDims);
  for (int r = 0; r < n_rows; ++r) {
    ConvertToFloat(type, rows.data() + int64_t{r} * kStride * SizeOf(type), kDims, row.data());
    GetElementwiseKernels(Isa::kScalar).add_gram(row.data(), 1, kDims, gram.data());
  }
  return gram;
}

TEST(GramGathererTest, SumsAreThoseOfTheCpu) {
  SealDevice device;
  GramGatherer gatherer(device.stream(), device.memory());
  Random random(1);
  const auto draw = [&](int n) {
    std::vector<float> x(n);
    for (float& value : x) value = static_cast<float>(random.Normal());
    return x;
  };
  for (const DType type : {DType::kBf16, DType::kF32}) {
    std::vector<GramPlan> plans;
    std::vector<std::vector<float>> want;
    for (const int n_rows : {1, 64, 150}) {
      const auto rows = BytesOf(draw(n_rows * kStride), type);
      const auto before = draw(kDims * kDims);
      plans.push_back({.rows = {.first = {device.Put(rows)}, .stride = kStride},
                       .n_rows = n_rows,
                       .device = device.memory(),
                       .gram = device.Put(BytesOf(before, DType::kF32))});
      want.push_back(GramOnCpu(rows, type, n_rows, before));
    }
    gatherer.Gather(plans, kDims, type);
    ASSERT_TRUE(device.stream()->Finish().ok());
    for (size_t p = 0; p < plans.size(); ++p) {
      const auto bytes = device.Get(plans[p].gram, kDims * kDims * sizeof(float));
      std::vector<float> got(kDims * kDims);
      std::memcpy(got.data(), bytes.data(), bytes.size());
      for (int i = 0; i < kDims; ++i) {
        for (int j = i; j < kDims; ++j) {  // what is below counts for nothing
          const float sum = want[p][i * kDims + j];
          ASSERT_NEAR(got[i * kDims + j], sum, 1e-4 * (1 + std::abs(sum))) << i << " " << j;
        }
      }
    }
    device.FreeAll();
  }
}

}  // namespace
}  // namespace kvlathe

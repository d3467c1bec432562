// Weights as a file has them, on a GPU: their numbers are those of the file's reader, bit for bit,
// and products are sums of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cuda/kernels/weights/row_products.h"
#include "cuda/kernels/weights/wide_rows.h"
#include "cuda/testing/device_array.h"
#include "io/gguf/ggml_types.h"

namespace kvlathe::cuda {
namespace {

struct StoredType {
  WeightType type;
  GgmlType stored;
  std::vector<int> halves;  // offsets of a block's F16 numbers
};

const std::vector<StoredType>& StoredTypes() {
  using enum WeightType;
  static const std::vector<StoredType> kTypes = {
      {kBf16, GgmlType::kBf16, {}},     {kF32, GgmlType::kF32, {}},
      {kQ4_0, GgmlType::kQ4_0, {0}},    {kQ4_1, GgmlType::kQ4_1, {0, 2}},
      {kQ5_0, GgmlType::kQ5_0, {0}},    {kQ5_1, GgmlType::kQ5_1, {0, 2}},
      {kQ8_0, GgmlType::kQ8_0, {0}},    {kQ2_K, GgmlType::kQ2_K, {80, 82}},
      {kQ3_K, GgmlType::kQ3_K, {108}},  {kQ4_K, GgmlType::kQ4_K, {0, 2}},
      {kQ5_K, GgmlType::kQ5_K, {0, 2}}, {kQ6_K, GgmlType::kQ6_K, {208}},
      {kIq4Nl, GgmlType::kIq4Nl, {0}},  {kIq4Xs, GgmlType::kIq4Xs, {0}},
      {kMxfp4, GgmlType::kMxfp4, {}}};
  return kTypes;
}

// W [n_out, n_in] as it is stored, rows at multiples of 16 bytes, and as numbers.
struct StoredWeights {
  int64_t n_out, n_in, row_bytes;
  std::vector<std::byte> stored;
  std::vector<float> numbers;
};

// Blocks of random bits with scales of both signs near 0.01, or exponents near 2^-7.
StoredWeights DrawnWeights(const StoredType& type, int64_t n_out, int64_t n_in, Random& random) {
  const GgmlLayout& layout = LayoutOf(type.stored);
  const int64_t n_blocks = n_in / layout.block_values;
  StoredWeights w = {n_out, n_in, (n_blocks * layout.block_bytes + 15) / 16 * 16, {}, {}};
  w.stored.resize(n_out * w.row_bytes);
  w.numbers.resize(n_out * n_in);
  for (int64_t out = 0; out < n_out; ++out) {
    std::byte* const row = &w.stored[out * w.row_bytes];
    for (int64_t b = 0; b < n_blocks; ++b) {
      std::byte* const block = row + b * layout.block_bytes;
      for (int64_t i = 0; i < layout.block_bytes; ++i) block[i] = std::byte(random.Below(256));
      for (const int offset : type.halves) {
        const float scale = static_cast<float>(random.Normal()) * 0.01f;
        ConvertFromFloat(DType::kF16, &scale, 1, block + offset);
      }
      const float number = static_cast<float>(random.Normal());
      if (type.type == WeightType::kMxfp4) block[0] = std::byte(118 + random.Below(6));
      if (type.type == WeightType::kBf16) ConvertFromFloat(DType::kBf16, &number, 1, block);
      if (type.type == WeightType::kF32) std::memcpy(block, &number, 4);
    }
    DequantizeBlocks(type.stored, row, n_in, &w.numbers[out * n_in]);
  }
  return w;
}

class StoredWeightsTest : public testing::TestWithParam<int> {
 protected:
  const StoredType& type() const { return StoredTypes()[GetParam()]; }
  // Two blocks, and where there are none as many as leave a rest.
  int64_t n_in() const { return HasBlocks(type().type) ? 512 : 77; }
};

TEST_P(StoredWeightsTest, RowsAreThoseOfTheFile) {
  Random random(1);
  const StoredWeights w = DrawnWeights(type(), 9, n_in(), random);
  const DeviceArray<std::byte> stored(w.stored);
  const DeviceArray<int32_t> rows(std::vector<int32_t>{7, 0, 7, 8});
  const DeviceArray<float> all(9 * n_in()), some(4 * n_in());
  const DeviceArray<uint16_t> rounded(9 * n_in());
  WideRowsParams params = {.type = type().type,
                           .w = stored.data(),
                           .w_row_bytes = w.row_bytes,
                           .n_rows = 9,
                           .n_in = static_cast<int>(n_in()),
                           .out = all.data(),
                           .out_stride = n_in()};
  WidenRows(nullptr, params);
  params.out = rounded.data();
  params.out_type = DType::kBf16;
  WidenRows(nullptr, params);
  params.out = some.data();
  params.out_type = DType::kF32;
  params.rows = rows.data();
  params.n_rows = 4;
  WidenRows(nullptr, params);
  const std::vector<float> got = all.Download(), of_some = some.Download();
  const std::vector<uint16_t> bits = rounded.Download();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], w.numbers[i]) << i;
    ASSERT_EQ(bits[i], ToBf16(w.numbers[i]).bits) << i;
  }
  for (int64_t i = 0; i < n_in(); ++i) {
    ASSERT_EQ(of_some[i], w.numbers[7 * n_in() + i]);
    ASSERT_EQ(of_some[n_in() + i], w.numbers[i]);
    ASSERT_EQ(of_some[3 * n_in() + i], w.numbers[8 * n_in() + i]);
  }
}

// Rows of x, in the type that the weights are multiplied with, as numbers and on the GPU. Row by
// row they lie `stride` apart.
struct DrawnRowsOfX {
  std::vector<float> numbers;
  std::unique_ptr<DeviceArray<float>> floats;
  std::unique_ptr<DeviceArray<uint16_t>> halves;

  DrawnRowsOfX(WeightType type, int64_t n, Random& random) : numbers(n) {
    std::vector<uint16_t> bits;
    for (float& x : numbers) {
      x = static_cast<float>(random.Normal());
      if (type == WeightType::kF32) continue;
      bits.push_back(ToBf16(x).bits);
      x = ToFloat(ToBf16(x));
    }
    if (type == WeightType::kF32) {
      floats = std::make_unique<DeviceArray<float>>(numbers);
    } else {
      halves = std::make_unique<DeviceArray<uint16_t>>(bits);
    }
  }
  const void* data() const {
    if (floats != nullptr) return floats->data();
    return halves->data();
  }
};

// Sums are in F32: of 512 products some of whose partial sums are larger than they are, and minima
// are summed apart.
void ExpectSums(const StoredWeights& w, const float* x, int64_t x_stride, const float* y,
                int64_t y_stride, int64_t n_rows, float added) {
  for (int64_t row = 0; row < n_rows; ++row) {
    for (int64_t out = 0; out < w.n_out; ++out) {
      double sum = added, size = 1;
      for (int64_t k = 0; k < w.n_in; ++k) {
        const double product = double{w.numbers[out * w.n_in + k]} * x[row * x_stride + k];
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(y[row * y_stride + out], sum, 4e-6 * size) << row << " " << out;
    }
  }
}

TEST_P(StoredWeightsTest, FewRowsAreMultipliedWithThem) {
  Random random(2);
  const int64_t n_out = 37, stride = n_in() + (n_in() == 77 ? 2 : 4), y_stride = n_out + 2;
  const StoredWeights w = DrawnWeights(type(), n_out, n_in(), random);
  const DeviceArray<std::byte> stored(w.stored);
  const DeviceArray<float> bias(std::vector<float>(n_out, 0.5f));
  for (const int n_rows : {1, 8, 11}) {
    const DrawnRowsOfX x(type().type, n_rows * stride, random);
    const DeviceArray<float> y(std::vector<float>(n_rows * y_stride, 2.0f));
    const RowProduct product = {.w = stored.data(),
                                .w_row_bytes = w.row_bytes,
                                .x = x.data(),
                                .x_stride = stride,
                                .y = y.data(),
                                .y_stride = y_stride,
                                .bias = bias.data(),
                                .n_rows = n_rows,
                                .n_out = static_cast<int>(n_out),
                                .n_in = static_cast<int>(n_in())};
    MultiplyRows(nullptr, {.type = type().type, .accumulate = true}, {&product, 1});
    const std::vector<float> got = y.Download();
    ExpectSums(w, x.numbers.data(), stride, got.data(), y_stride, n_rows, 2.5f);
    EXPECT_EQ(got[n_out], 2.0f);
  }
}

// A row has the same bits alone and among others, and products with different matrices go together.
TEST_P(StoredWeightsTest, ProductsAreWhatTheyAreAlone) {
  Random random(3);
  const StoredWeights first = DrawnWeights(type(), 20, n_in(), random);
  const StoredWeights second = DrawnWeights(type(), 5, n_in(), random);
  const DeviceArray<std::byte> first_stored(first.stored), second_stored(second.stored);
  const int n_rows = 10;
  const int64_t element = type().type == WeightType::kF32 ? 4 : 2;
  const DrawnRowsOfX x(type().type, n_rows * n_in(), random);
  const DeviceArray<float> together(n_rows * 25), alone(20);
  const RowProduct of_first = {.w = first_stored.data(),
                               .w_row_bytes = first.row_bytes,
                               .x = x.data(),
                               .x_stride = n_in(),
                               .y = together.data(),
                               .y_stride = 25,
                               .n_rows = n_rows,
                               .n_out = 20,
                               .n_in = static_cast<int>(n_in())};
  RowProduct of_second = of_first;
  of_second.w = second_stored.data();
  of_second.y = together.data() + 20;
  of_second.n_rows = 3;
  of_second.n_out = 5;
  // More than one launch takes; the others have no rows.
  std::vector<RowProduct> products(60, of_first);
  for (RowProduct& product : products) product.n_rows = 0;
  products[7] = of_first;
  products[55] = of_second;
  MultiplyRows(nullptr, {.type = type().type}, products);
  RowProduct of_row = of_first;
  of_row.x = static_cast<const std::byte*>(x.data()) + 9 * n_in() * element;
  of_row.y = alone.data();
  of_row.n_rows = 1;
  MultiplyRows(nullptr, {.type = type().type}, {&of_row, 1});
  const std::vector<float> all = together.Download(), row = alone.Download();
  ExpectSums(first, x.numbers.data(), n_in(), all.data(), 25, n_rows, 0);
  ExpectSums(second, x.numbers.data(), n_in(), all.data() + 20, 25, 3, 0);
  for (int out = 0; out < 20; ++out) EXPECT_EQ(all[9 * 25 + out], row[out]);
}

// Where outputs are many a block has two tiles of them, and every output its own bits still.
TEST_P(StoredWeightsTest, ManyOutputsAreWhatFewAre) {
  Random random(4);
  const int n_out = 8200, n_in = HasBlocks(type().type) ? 256 : 32;
  const StoredWeights w = DrawnWeights(type(), 40, n_in, random);
  std::vector<std::byte> repeated;
  while (std::ssize(repeated) < n_out * w.row_bytes) {
    repeated.insert(repeated.end(), w.stored.begin(), w.stored.end());
  }
  const DeviceArray<std::byte> stored(repeated);
  const DrawnRowsOfX x(type().type, n_in, random);
  const DeviceArray<float> many(n_out), few(40);
  RowProduct product = {.w = stored.data(),
                        .w_row_bytes = w.row_bytes,
                        .x = x.data(),
                        .x_stride = n_in,
                        .y = many.data(),
                        .y_stride = n_out,
                        .n_rows = 1,
                        .n_out = n_out,
                        .n_in = n_in};
  MultiplyRows(nullptr, {.type = type().type}, {&product, 1});
  product.y = few.data();
  product.n_out = 40;
  MultiplyRows(nullptr, {.type = type().type}, {&product, 1});
  const std::vector<float> all = many.Download(), first = few.Download();
  for (int out = 0; out < n_out; ++out) ASSERT_EQ(all[out], first[out % 40]) << out;
}

INSTANTIATE_TEST_SUITE_P(Types, StoredWeightsTest,
                         testing::Range(0, static_cast<int>(StoredTypes().size())),
                         [](const testing::TestParamInfo<int>& info) {
                           return std::string(WeightTypeName(StoredTypes()[info.param].type));
                         });

// A grid has 65,535 blocks y at most. Nothing runs: what matters is that the GPU takes it.
TEST(RowProductsTest, ManyProductsOfManyRowsAreLaunched) {
  const DeviceArray<float> numbers(64);
  const RowProduct product = {.w = reinterpret_cast<const std::byte*>(numbers.data()),
                              .w_row_bytes = 64,
                              .x = numbers.data(),
                              .y = numbers.data(),
                              .n_rows = 65536,
                              .n_out = 1,
                              .n_in = 1};
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
  MultiplyRows(stream, {.type = WeightType::kF32}, std::vector<RowProduct>(20, product));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t n_launches = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &n_launches), cudaSuccess);
  EXPECT_EQ(n_launches, 3);  // of 7, 7 and 6 products
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace kvlathe::cuda

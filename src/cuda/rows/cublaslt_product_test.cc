// Products by cuBLASLt against sums in double.
#include "cuda/rows/cublaslt_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "cuda/testing/device_array.h"

namespace kvlathe {
namespace {

class CublasltProductTest : public testing::Test {
 protected:
  static constexpr int64_t kMemory = int64_t{64} << 20;

  std::unique_ptr<CudaStream> stream_ = *CudaStream::Create();
  std::unique_ptr<CudaDevice> device_ = *CudaDevice::Create(stream_.get(), kMemory);
  std::unique_ptr<CublasltProduct> products_ = *CublasltProduct::Create(device_.get());
};

template <typename T>
std::vector<T> DrawnNumbers(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<T> numbers(n);
  for (T& x : numbers) {
    const auto drawn = static_cast<float>(random.Normal());
    if constexpr (sizeof(T) == 2) {
      x = ToBf16(drawn);
    } else {
      x = drawn;
    }
  }
  return numbers;
}

// Rows of x and W lie 8 numbers further apart than they are wide, those of y 3.
template <typename T, typename Y>
void ExpectProduct(CublasltProduct* products, CudaStream* stream, int64_t n_rows, bool accumulate) {
  const int64_t n_out = 37, n_in = 48, stride = n_in + 8, y_stride = n_out + 3;
  const std::vector<T> w = DrawnNumbers<T>(n_out * stride, 1);
  const std::vector<T> x = DrawnNumbers<T>(n_rows * stride, 2);
  const std::vector<Y> before = DrawnNumbers<Y>(n_rows * y_stride, 3);
  const DeviceArray<T> w_there(w), x_there(x);
  DeviceArray<Y> y(before);
  cudaStreamSynchronize(nullptr);
  ASSERT_TRUE(products
                  ->Multiply({.type = kDTypeOf<T>,
                              .w = w_there.data(),
                              .w_stride = stride,
                              .x = x_there.data(),
                              .x_stride = stride,
                              .y_type = kDTypeOf<Y>,
                              .y = y.data(),
                              .y_stride = y_stride,
                              .n_rows = n_rows,
                              .n_out = n_out,
                              .n_in = n_in,
                              .accumulate = accumulate})
                  .ok());
  const std::vector<Y> got = y.Download(stream->get());
  for (int64_t row = 0; row < n_rows; ++row) {
    for (int64_t out = 0; out < y_stride; ++out) {
      const int64_t idx = row * y_stride + out;
      double sum = out >= n_out || accumulate ? ToFloat(before[idx]) : 0;
      for (int64_t k = 0; k < n_in && out < n_out; ++k) {
        sum += double{ToFloat(x[row * stride + k])} * ToFloat(w[out * stride + k]);
      }
      // Sums of 48 products of size 1 in F32, and where y is BF16 a rounding to 8 bits.
      const double bound = 2e-5 + (sizeof(Y) == 2 && out < n_out ? std::abs(sum) / 256 : 0);
      ASSERT_NEAR(ToFloat(got[idx]), sum, bound) << row << " " << out;
    }
  }
}

TEST_F(CublasltProductTest, AreSumsOfProducts) {
  for (const int64_t n_rows : {1, 5, 33}) {
    ExpectProduct<Bf16, float>(products_.get(), stream_.get(), n_rows, false);
    ExpectProduct<Bf16, float>(products_.get(), stream_.get(), n_rows, true);
    ExpectProduct<Bf16, Bf16>(products_.get(), stream_.get(), n_rows, false);
    ExpectProduct<float, float>(products_.get(), stream_.get(), n_rows, false);
    ExpectProduct<float, float>(products_.get(), stream_.get(), n_rows, true);
  }
}

// Rows of a batch begin anywhere.
TEST_F(CublasltProductTest, TakesPlacesOfAnyAlignment) {
  const std::vector<float> w = DrawnNumbers<float>(5 * 7, 1), x = DrawnNumbers<float>(2 * 7 + 1, 2);
  const DeviceArray<float> w_there(w), x_there(x), y(2 * 5 + 3);
  cudaStreamSynchronize(nullptr);
  ASSERT_TRUE(products_
                  ->Multiply({.type = DType::kF32,
                              .w = w_there.data(),
                              .w_stride = 7,
                              .x = x_there.data() + 1,
                              .x_stride = 7,
                              .y = y.data() + 3,
                              .y_stride = 5,
                              .n_rows = 2,
                              .n_out = 5,
                              .n_in = 7})
                  .ok());
  const std::vector<float> got = y.Download(stream_->get());
  for (int i = 0; i < 10; ++i) {
    float sum = 0;
    for (int k = 0; k < 7; ++k) sum += x[1 + i / 5 * 7 + k] * w[i % 5 * 7 + k];
    EXPECT_NEAR(got[3 + i], sum, 1e-5f);
  }
}

TEST_F(CublasltProductTest, NamesAProductThatIsRefused) {
  const DeviceArray<float> numbers(64);
  DenseProduct product = {.type = DType::kF32,
                          .w = numbers.data(),
                          .w_stride = 4,  // rows would overlap
                          .x = numbers.data(),
                          .x_stride = 8,
                          .y = numbers.data(),
                          .y_stride = 2,
                          .n_rows = 1,
                          .n_out = 2,
                          .n_in = 8};
  const Status status = products_->Multiply(product);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("(F32 1 rows x [2, 8])"), std::string::npos) << status.message();
  product.w_stride = 8;
  product.y_type = DType::kBf16;  // products in F32 are F32
  EXPECT_EQ(products_->Multiply(product).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvlathe

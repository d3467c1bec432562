// Residents of a GPU lie there as their header says, and come back as they were written.
#include "cuda/residents/cuda_residents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/linear/blocks/block_layout.h"
#include "cpu/kernels/linear/blocks/block_values.h"

namespace kvlathe {
namespace {

constexpr int64_t kGpuBytes = int64_t{32} << 20;

class CudaResidentsTest : public ::testing::Test {
 protected:
  CudaResidentsTest() {
    stream_ = *CudaStream::Create();
    memory_ = *CudaDevice::Create(stream_.get(), kGpuBytes);
    residents_ = std::make_unique<CudaResidents>(memory_.get(), &host_);
  }
  static std::vector<float> RandomNumbers(int64_t n) {
    Random random(7);
    std::vector<float> numbers(n);
    for (float& x : numbers) x = static_cast<float>(random.Normal());
    return numbers;
  }
  // What lies at an address of the GPU.
  template <typename T>
  std::vector<T> At(const T* address, int64_t n) {
    std::vector<T> numbers(n);
    EXPECT_EQ(cudaMemcpyAsync(numbers.data(), address, n * sizeof(T), cudaMemcpyDeviceToHost,
                              stream_->get()),
              cudaSuccess);
    EXPECT_TRUE(stream_->Finish().ok());
    return numbers;
  }
  int64_t held() const { return kGpuBytes - memory_->n_free_bytes(); }

  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaDevice> memory_;
  CpuDevice host_memory_;
  CpuResidents host_{&host_memory_};
  std::unique_ptr<CudaResidents> residents_;
};

TEST_F(CudaResidentsTest, RowsLieOneAfterTheOtherAndComeBack) {
  constexpr int64_t kOuts = 100, kIns = 44;
  const std::vector<float> numbers = RandomNumbers(kOuts * kIns);
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16}) {
    Weight w = *Weight::Create(residents_.get(), kOuts, kIns, type);
    // In two parts, the second first, of rows that are farther apart than they are wide.
    std::vector<float> wide(36 * (kIns + 3));
    for (int64_t r = 0; r < 36; ++r) {
      std::copy_n(&numbers[(64 + r) * kIns], kIns, &wide[r * (kIns + 3)]);
    }
    w.WriteRows(64, 36, DType::kF32, wide.data(), kIns + 3);
    w.WriteRows(0, 64, DType::kF32, numbers.data(), kIns);
    const CudaMatrix& matrix = *residents_->At(w.id());
    const int64_t element = type == WeightType::kF32 ? 4 : 2;
    EXPECT_EQ(matrix.row_bytes, type == WeightType::kF32 ? 176 : 96);
    EXPECT_EQ(w.n_bytes(), kOuts * matrix.row_bytes);
    const std::vector<std::byte> stored = At(matrix.data, kOuts * matrix.row_bytes);
    std::vector<float> read(20 * kIns);
    w.ReadRows(55, 20, read.data());
    for (int64_t r = 0; r < 20; ++r) {
      const std::byte* const row = &stored[(55 + r) * matrix.row_bytes];
      std::vector<float> expected(kIns);
      if (type == WeightType::kF32) {
        std::memcpy(expected.data(), row, kIns * 4);
      } else {
        ConvertToFloat(DType::kBf16, row, kIns, expected.data());
      }
      for (int64_t i = 0; i < kIns; ++i) {
        const float x = numbers[(55 + r) * kIns + i];
        ASSERT_EQ(expected[i], type == WeightType::kF32 ? x : ToFloat(ToBf16(x)));
        ASSERT_EQ(read[r * kIns + i], expected[i]);
      }
      for (int64_t b = kIns * element; b < matrix.row_bytes; ++b) ASSERT_EQ(row[b], std::byte{0});
    }
  }
  EXPECT_EQ(held(), 0);
}

TEST_F(CudaResidentsTest, BlocksLieAsTheyWereStored) {
  constexpr int64_t kOuts = 70, kIns = 3 * 32;
  const int64_t row_bytes = 3 * StoredBlockBytes(WeightType::kQ8_0);
  std::vector<std::byte> blocks(kOuts * row_bytes);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i % 59);
  Weight w = *Weight::Create(residents_.get(), kOuts, kIns, WeightType::kQ8_0);
  w.WriteBlocks(0, kOuts, blocks.data(), row_bytes);
  const CudaMatrix& matrix = *residents_->At(w.id());
  EXPECT_EQ(matrix.row_bytes, 112);  // of 102
  const std::vector<std::byte> stored = At(matrix.data, kOuts * matrix.row_bytes);
  CpuResidents on_cpu(&host_memory_);
  Weight same = *Weight::Create(&on_cpu, kOuts, kIns, WeightType::kQ8_0);
  same.WriteBlocks(0, kOuts, blocks.data(), row_bytes);
  std::vector<float> read(kOuts * kIns), expected(kOuts * kIns);
  w.ReadRows(0, kOuts, read.data());
  same.ReadRows(0, kOuts, expected.data());
  EXPECT_EQ(read, expected);
  for (int64_t r = 0; r < kOuts; ++r) {
    ASSERT_EQ(std::memcmp(&stored[r * matrix.row_bytes], &blocks[r * row_bytes], row_bytes), 0);
  }
}

// Large matrices only for a verb, small ones from the first such verb on, and anew where they have
// changed.
TEST_F(CudaResidentsTest, TheHostHoldsWhatVerbsAskForThere) {
  constexpr int64_t kIns = 256;
  const int64_t n_large = CudaResidents::kMostHeldBytes / 2 / kIns + 1;
  for (const int64_t n_outs : {int64_t{64}, n_large}) {
    const std::vector<float> numbers = RandomNumbers(n_outs * kIns);
    Weight w = *Weight::Create(residents_.get(), n_outs, kIns, WeightType::kBf16);
    w.WriteRows(0, n_outs, DType::kF32, numbers.data(), kIns);
    std::vector<float> row(kIns);
    const auto on_host = [&] {
      host_.At(w.id())->UnpackRow(n_outs - 1, row.data());
      return row[5];
    };
    EXPECT_EQ(on_host(), 0);
    residents_->HoldOnHost(w.id());
    EXPECT_EQ(on_host(), ToFloat(ToBf16(numbers[(n_outs - 1) * kIns + 5])));
    residents_->ReleaseHost();
    EXPECT_EQ(on_host() == 0, n_outs == n_large);
    const std::vector<float> others(kIns, 3.0f);
    w.WriteRows(n_outs - 1, 1, DType::kF32, others.data(), kIns);
    residents_->HoldOnHost(w.id());
    EXPECT_EQ(on_host(), 3);
    residents_->ReleaseHost();
  }
}

TEST_F(CudaResidentsTest, MapsAndCodebooksLieThereToo) {
  constexpr int kRank = 16, kDim = 32;
  const std::vector<float> way_back = RandomNumbers(kRank * kDim);
  const std::vector<float> offset(kDim, 2.0f);
  const LatentMapId map =
      residents_->AddLatentMap(LatentMap(way_back, offset, kDim, kDim, DType::kF32));
  const CudaLatentMap& on_gpu = *residents_->At(map);
  EXPECT_EQ(on_gpu.rank, kRank);
  EXPECT_EQ(on_gpu.row_type, DType::kF32);
  EXPECT_EQ(At(on_gpu.offset, kDim), offset);
  const auto columns = At(reinterpret_cast<const float*>(on_gpu.columns), kRank * kDim);
  for (int i = 0; i < kDim; ++i) {
    for (int r = 0; r < kRank; ++r) ASSERT_EQ(columns[i * kRank + r], way_back[r * kDim + i]);
  }
  LayerCodebooks books;
  books.k = {.n_codes = 4, .boundaries = {1, 2, 3}, .centroids = {0.5f, 1.5f, 2.5f, 3.5f}};
  books.v.n_codes = 8;
  books.key_scales = {RandomNumbers(2 * 16), RandomNumbers(2 * 48)};
  const CodebooksId id = residents_->AddCodebooks(books);
  const CudaCodebooks& placed = *residents_->At(id);
  EXPECT_EQ(placed.v.n_codes, 8);
  const std::vector<Codebook> both = At(placed.books, 2);
  EXPECT_EQ(both[0].boundaries, books.k.boundaries);
  EXPECT_EQ(both[0].centroids, books.k.centroids);
  EXPECT_EQ(both[1].n_codes, 8);
  for (int g = 0; g < 2; ++g) {
    EXPECT_EQ(At(placed.key_scales[g], std::ssize(books.key_scales[g])), books.key_scales[g]);
  }
  residents_->Remove(map);
  residents_->Remove(id);
  EXPECT_EQ(held(), 0);
}

TEST_F(CudaResidentsTest, WantOfMemoryIsTold) {
  const auto w = residents_->AddWeight(1 << 14, 1 << 12, WeightType::kBf16);
  ASSERT_FALSE(w.ok());
  EXPECT_EQ(w.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(w.status().ToString().find("no memory on the GPU"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe

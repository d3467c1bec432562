// What verbs of a GPU do, and what those of the CPU do, on equal plans.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cpu/cpu_backend.h"
#include "cuda/rows/row_verbs.h"
#include "io/gguf/ggml_types_quantize.h"

namespace kvlathe {

// Memory and residents of one of the two machines.
struct Side {
  Device& memory;
  Residents& residents;

  template <typename T>
  MachineBuffer Put(const std::vector<T>& numbers) const {
    return *MachineBuffer::CopyOf(&memory, std::as_bytes(std::span(numbers)), "a test");
  }
  // n numbers of a type, as floats.
  MachineBuffer Put(const std::vector<float>& numbers, DType type) const {
    std::vector<std::byte> bytes(numbers.size() * SizeOf(type));
    ConvertFromFloat(type, numbers.data(), std::ssize(numbers), bytes.data());
    return Put(bytes);
  }
  std::vector<float> Get(const MachineBuffer& buffer, int64_t n, DType type = DType::kF32) const {
    std::vector<std::byte> bytes(n * SizeOf(type));
    memory.Download(buffer.place(), bytes);
    std::vector<float> numbers(n);
    ConvertToFloat(type, bytes.data(), n, numbers.data());
    return numbers;
  }
  Weight Matrix(const std::vector<float>& numbers, int64_t n_out, WeightType type) const {
    const int64_t n_in = std::ssize(numbers) / n_out;
    Weight weight = *Weight::Create(&residents, n_out, n_in, type);
    if (!HasBlocks(type)) {
      weight.WriteRows(0, n_out, DType::kF32, numbers.data(), n_in);
      return weight;
    }
    const int64_t row_bytes = n_in / 32 * 18;
    std::vector<std::byte> blocks(n_out * row_bytes);
    QuantizeBlocks(GgmlType::kQ4_0, numbers.data(), n_out * n_in, blocks.data());
    weight.WriteBlocks(0, n_out, blocks.data(), row_bytes);
    return weight;
  }
};

inline std::vector<float> Drawn(int64_t n, uint64_t seed, float size = 1) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = size * static_cast<float>(random.Normal());
  return x;
}

class RowVerbsTest : public testing::Test {
 protected:
  RowVerbsTest() { cpu_.set_exact_rows(true); }
  ~RowVerbsTest() override { EXPECT_TRUE(stream_->Finish().ok()); }

  // Calls body(side, verbs) on both machines and compares what it returns, to a relative or
  // absolute `bound`; 0: bit by bit.
  template <typename F>
  void ExpectLikeCpu(const F& body, double bound) {
    const std::vector<float> want = body(Side{cpu_memory_, cpu_residents_}, cpu_);
    const std::vector<float> got = body(Side{*device_, residents_}, verbs_);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], bound * std::max(1.0f, std::abs(want[i]))) << i;
    }
  }

  ThreadPool pool_{1};
  CpuDevice cpu_memory_, host_memory_;
  CpuResidents cpu_residents_{&cpu_memory_}, host_residents_{&host_memory_};
  CpuBackend cpu_{&pool_, Isa::kScalar, &cpu_memory_, &cpu_residents_};
  std::unique_ptr<CudaStream> stream_ = *CudaStream::Create();
  std::unique_ptr<CudaDevice> device_ = *CudaDevice::Create(stream_.get(), int64_t{48} << 20);
  CudaResidents residents_{device_.get(), &host_residents_};
  RowVerbs verbs_{stream_.get(), device_.get(), &residents_};
};

// Half a unit in the last place of BF16 decides differently where sums differ.
inline constexpr double kBf16Bound = 1.0 / 128;
inline constexpr double kF32Bound = 2e-5;

}  // namespace kvlathe

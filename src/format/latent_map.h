// How keys are rebuilt where a cache holds latents of them from before RoPE (Palu,
// docs/methods/palu.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace kvlathe {

struct LatentMapView {
  int rank = 0;                   // multiple of 16
  int head_dim = 0;               // multiple of 16; of all keys that one row of latents becomes
  int key_dim = 0;                // of each of these keys, which turn alike
  const void* columns = nullptr;  // of the way back: [head_dim][rank] row_type
  const float* offset = nullptr;  // [head_dim], added to every key before it turns
  // The same columns as whole numbers, for latents that are whole numbers of kUnitNumberStep:
  // [head_dim][rank] in steps of units[head_dim]. The steps are the finest with which no sum over
  // such latents outgrows 32 bits. Null with F32 rows, for which 16 bits are too few.
  const int16_t* numbers = nullptr;
  const float* units = nullptr;
};

// The way from the latents of one KV head of the cache to its keys: k = latent F + offset. They are
// head_dim / key_dim keys of KV heads of the model side by side.
class LatentMap {
 public:
  // F [rank, head_dim] row-major; offset [head_dim], or empty for none.
  LatentMap(std::span<const float> way_back, std::span<const float> offset, int head_dim,
            int key_dim, DType row_type);

  LatentMapView view() const {
    return {.rank = rank_,
            .head_dim = head_dim_,
            .key_dim = key_dim_,
            .columns = columns_.data(),
            .offset = offset_.data(),
            .numbers = numbers_.empty() ? nullptr : numbers_.data(),
            .units = units_.data()};
  }
  int64_t n_bytes() const {
    return std::ssize(columns_) + static_cast<int64_t>(sizeof(int16_t)) * std::ssize(numbers_) +
           static_cast<int64_t>(sizeof(float)) * (std::ssize(offset_) + std::ssize(units_));
  }

 private:
  void RoundColumns(const std::vector<float>& columns);

  int rank_;
  int head_dim_;
  int key_dim_;
  std::vector<std::byte> columns_;
  std::vector<int16_t> numbers_;
  std::vector<float> offset_, units_;
};

}  // namespace kvlathe

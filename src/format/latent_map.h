// A latent map rebuilds keys where a cache holds latents of them from before RoPE (Palu,
// docs/methods/palu.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/split_bits/bit_split.h"
#include "format/split_bits/unit_codes.h"
#include "tensor/dtype.h"

namespace kvlathe {

// The columns of the way back as bytes, for latents that are codes of one split of bits and are
// read as bytes (UnitBytes). Channels of each byte step have units of their own: those with few
// bits have small weights, which would vanish in the unit of the others.
struct LatentBytes {
  BitSplit split;                   // without scaled channels
  int ends[kByteSteps] = {};        // of the channels of each step
  const int8_t* numbers = nullptr;  // [head_dim][n_coded]
  const float* units = nullptr;     // [kByteSteps][head_dim]
  const int32_t* starts = nullptr;  // [kByteSteps][head_dim]: what makes up for the 128 of bytes
};

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
  const LatentBytes* bytes = nullptr;  // [n_splits]; none with F32 rows
  int n_splits = 0;
};

// The way from the latents of one KV head of the cache to its keys: k = latent F + offset. They are
// head_dim / key_dim keys of KV heads of the model side by side.
class LatentMap {
 public:
  // F [rank, head_dim] row-major; offset [head_dim], or empty for none. `splits` are those that
  // sealed blocks have; a split without channels is left out.
  LatentMap(std::span<const float> way_back, std::span<const float> offset, int head_dim,
            int key_dim, DType row_type, std::span<const BitSplit> splits = {});
  LatentMap(LatentMap&&) = default;  // a copy's views would be those of the first
  LatentMap& operator=(LatentMap&&) = default;

  LatentMapView view() const {
    return {.rank = rank_,
            .head_dim = head_dim_,
            .key_dim = key_dim_,
            .columns = columns_.data(),
            .offset = offset_.data(),
            .numbers = numbers_.empty() ? nullptr : numbers_.data(),
            .units = units_.data(),
            .bytes = bytes_.data(),
            .n_splits = static_cast<int>(std::ssize(bytes_))};
  }
  // Of the columns.
  DType row_type() const { return row_type_; }
  int64_t n_bytes() const;

 private:
  // What views of bytes_ point to; moving it leaves them valid.
  struct ByteColumns {
    std::vector<int8_t> numbers;
    std::vector<float> units;
    std::vector<int32_t> starts;
  };

  void RoundColumns(const std::vector<float>& columns);
  void AddBytes(const std::vector<float>& columns, const BitSplit& split);

  int rank_;
  int head_dim_;
  int key_dim_;
  DType row_type_;
  std::vector<std::byte> columns_;
  std::vector<int16_t> numbers_;
  std::vector<float> offset_, units_;
  std::vector<ByteColumns> byte_columns_;
  std::vector<LatentBytes> bytes_;
};

}  // namespace kvlathe

#include "format/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "format/matrix_layout.h"

namespace kvlathe {
namespace {

// Inputs transposed at a time: one cache line of Bf16 per row of a block stays in L1.
constexpr int64_t kTileIn = 32;
constexpr int64_t kF32OutPad = 16;

uint32_t LoadPair(const uint16_t* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

// Row `row` of the source, elements [first_in, first_in + n), as Bf16 bits.
void ReadBf16(DType dtype, const std::byte* row, int64_t first_in, int64_t n, uint16_t* to) {
  const std::byte* from = row + first_in * SizeOf(dtype);
  if (dtype == DType::kBf16) {
    std::memcpy(to, from, n * sizeof(uint16_t));
    return;
  }
  float values[kTileIn];
  ConvertToFloat(dtype, from, n, values);
  for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(values[i]).bits;
}

// Rows of one block of 64 outputs, [first, first + n_rows) within it. `lines` is the block,
// [n_in_padded / 2][64] pairs.
void PackBlock(int64_t first, int64_t n_rows, int64_t n_in, DType dtype, const std::byte* rows,
               int64_t row_bytes, uint32_t* lines) {
  uint16_t tile[kOutBlock][kTileIn];
  for (int64_t in = 0; in < n_in; in += kTileIn) {
    const int64_t n = std::min(kTileIn, n_in - in);
    for (int64_t j = 0; j < n_rows; ++j) {
      if (n < kTileIn) std::fill(tile[j], tile[j] + kTileIn, 0);
      ReadBf16(dtype, rows + j * row_bytes, in, n, tile[j]);
    }
    uint32_t* line = lines + in / 2 * kOutBlock + first;
    for (int64_t pair = 0; pair < (n + 1) / 2; ++pair, line += kOutBlock) {
      for (int64_t j = 0; j < n_rows; ++j) line[j] = LoadPair(&tile[j][2 * pair]);
    }
  }
}

}  // namespace

int64_t PackedMatrix::BytesFor(int64_t n_out, int64_t n_in, DType compute_type) {
  const int64_t n_values = compute_type == DType::kBf16
                               ? RoundUp(n_out, kOutBlock) * RoundUp(n_in, kInBlock)
                               : RoundUp(n_out, kF32OutPad) * n_in;
  return n_values * SizeOf(compute_type);
}

PackedMatrix PackedMatrix::In(std::byte* zeros, int64_t n_out, int64_t n_in, DType compute_type) {
  KVL_CHECK_GE(n_out, 1);
  KVL_CHECK_GE(n_in, 1);
  KVL_CHECK(compute_type != DType::kF16);
  PackedMatrix m;
  m.n_out_ = n_out;
  m.n_in_ = n_in;
  m.compute_type_ = compute_type;
  m.data_ = zeros;
  return m;
}

StatusOr<PackedMatrix> PackedMatrix::Create(int64_t n_out, int64_t n_in, DType compute_type) {
  KVL_ASSIGN_OR_RETURN(Buffer buffer,
                       Buffer::Allocate(BytesFor(n_out, n_in, compute_type), "a weight matrix"));
  PackedMatrix m = In(buffer.data(), n_out, n_in, compute_type);
  m.buffer_ = std::move(buffer);
  return m;
}

void PackedMatrix::PackRows(int64_t first_out, int64_t n_rows, DType dtype, const void* rows,
                            int64_t row_stride) {
  KVL_CHECK_GE(first_out, 0);
  KVL_CHECK_LE(first_out + n_rows, n_out_);
  const std::byte* from = static_cast<const std::byte*>(rows);
  const int64_t row_bytes = row_stride * SizeOf(dtype);
  const int64_t end = first_out + n_rows;
  for (int64_t out = first_out; out < end;) {
    const int64_t block_end = std::min(end, out / kOutBlock * kOutBlock + kOutBlock);
    const std::byte* block_rows = from + (out - first_out) * row_bytes;
    if (compute_type_ == DType::kBf16) {
      uint32_t* block = reinterpret_cast<uint32_t*>(data_) +
                        out / kOutBlock * kOutBlock * RoundUp(n_in_, kInBlock) / 2;
      PackBlock(out % kOutBlock, block_end - out, n_in_, dtype, block_rows, row_bytes, block);
    } else {
      const int64_t w_stride = RoundUp(n_out_, kF32OutPad);
      float tile[kOutBlock][kTileIn];
      for (int64_t in = 0; in < n_in_; in += kTileIn) {
        const int64_t n = std::min(kTileIn, n_in_ - in);
        for (int64_t j = 0; j < block_end - out; ++j) {
          ConvertToFloat(dtype, block_rows + j * row_bytes + in * SizeOf(dtype), n, tile[j]);
        }
        for (int64_t i = 0; i < n; ++i) {
          float* line = reinterpret_cast<float*>(data_) + (in + i) * w_stride + out;
          for (int64_t j = 0; j < block_end - out; ++j) line[j] = tile[j][i];
        }
      }
    }
    out = block_end;
  }
}

void PackedMatrix::UnpackRow(int64_t out, float* row) const {
  KVL_CHECK_GE(out, 0);
  KVL_CHECK_LT(out, n_out_);
  if (compute_type_ == DType::kF32) {
    const int64_t w_stride = RoundUp(n_out_, kF32OutPad);
    for (int64_t in = 0; in < n_in_; ++in)
      row[in] = reinterpret_cast<const float*>(data_)[in * w_stride + out];
    return;
  }
  const Bf16* block =
      reinterpret_cast<const Bf16*>(data_) + out / kOutBlock * kOutBlock * RoundUp(n_in_, kInBlock);
  for (int64_t in = 0; in < n_in_; ++in) {
    row[in] = ToFloat(block[(in / 2 * kOutBlock + out % kOutBlock) * 2 + in % 2]);
  }
}

}  // namespace kvlathe

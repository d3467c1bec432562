// Weights W [n_out, n_in] are packed once for all who multiply rows with them.
//
// What is stored is W^T. In BF16 it has oneDNN's format BA16a64b2a, which is
// [n_out / 64][n_in / 2][64][2] with n_out padded to 64 and n_in to 32. oneDNN's BF16 matmul picks
// this format for itself on AVX-512 BF16, and its inner [16][64][2] is four B tiles of AMX side by
// side. Where the model computes in F32, it is a plain [n_in][n_out padded to 16].
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {

// Activations and packed weights are kBf16 while computing, or kF32 where exactness is wanted.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Memory for W [n_out, n_in] in compute_type (kBf16 or kF32), all zero. Fails with
  // kResourceExhausted.
  static StatusOr<PackedMatrix> Create(int64_t n_out, int64_t n_in, DType compute_type);

  // The same in memory of the caller's, which holds zeros and outlives the matrix.
  static PackedMatrix In(std::byte* zeros, int64_t n_out, int64_t n_in, DType compute_type);
  // Bytes that such a matrix takes.
  static int64_t BytesFor(int64_t n_out, int64_t n_in, DType compute_type);

  // Writes rows [first_out, first_out + n_rows) of W from `rows` [n_rows, n_in] of dtype,
  // row-major, row_stride elements apart. Any row range may be written, in any order, from
  // different threads for different rows.
  void PackRows(int64_t first_out, int64_t n_rows, DType dtype, const void* rows,
                int64_t row_stride);

  // Row `out` of W as float, for folding and tests.
  void UnpackRow(int64_t out, float* row) const;

  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  DType compute_type() const { return compute_type_; }
  int64_t n_bytes() const { return BytesFor(n_out_, n_in_, compute_type_); }
  const std::byte* data() const { return data_; }

 private:
  int64_t n_out_ = 0;
  int64_t n_in_ = 0;
  DType compute_type_ = DType::kBf16;
  std::byte* data_ = nullptr;
  Buffer buffer_;  // empty where the memory is the caller's
};

}  // namespace kvlathe

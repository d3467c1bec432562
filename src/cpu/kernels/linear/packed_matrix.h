// Weights W [n_out, n_in] as the kernels of the CPU read them: packed once for all who multiply
// rows with them (cpu/kernels/linear/weight_format.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cpu/kernels/linear/weight_format.h"
#include "machine/weight_type.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Memory for W [n_out, n_in], all zero. kResourceExhausted.
  static StatusOr<PackedMatrix> Create(int64_t n_out, int64_t n_in, WeightType type);

  // The same in memory of the caller's, which holds zeros and outlives the matrix.
  static PackedMatrix In(std::byte* zeros, int64_t n_out, int64_t n_in, WeightType type);
  // Bytes that such a matrix takes.
  static int64_t BytesFor(int64_t n_out, int64_t n_in, WeightType type);

  // Writes rows [first_out, first_out + n_rows) of W from `rows` [n_rows, n_in] of dtype,
  // row-major, row_stride elements apart. Any row range may be written, in any order, from
  // different threads for different rows.
  void PackRows(int64_t first_out, int64_t n_rows, DType dtype, const void* rows,
                int64_t row_stride);

  // The same of blocks as ggml stores them, of W's own type.
  void PackBlocks(const SourceBlocks& source) { format_->PackBlocks(size_, source, data_); }

  // Row `out` of W as float, for folding and tests.
  void UnpackRow(int64_t out, float* row) const;
  // Rows [first_out, first_out + n_rows) as float [n_rows, n_in]; whole groups of 64 are faster.
  void UnpackRows(int64_t first_out, int64_t n_rows, float* rows) const;

  int64_t n_out() const { return size_.n_out; }
  int64_t n_in() const { return size_.n_in; }
  const MatrixSize& size() const { return size_; }
  const WeightFormat& format() const { return *format_; }
  int64_t n_bytes() const { return format_->BytesFor(size_); }
  const std::byte* data() const { return data_; }

 private:
  const WeightFormat* format_ = nullptr;
  MatrixSize size_;
  std::byte* data_ = nullptr;
  Buffer buffer_;  // empty where the memory is the caller's
};

}  // namespace kvlathe

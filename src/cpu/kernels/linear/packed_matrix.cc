#include "cpu/kernels/linear/packed_matrix.h"

#include <utility>

#include "base/check.h"

namespace kvlathe {

int64_t PackedMatrix::BytesFor(int64_t n_out, int64_t n_in, WeightType type) {
  return FormatOf(type).BytesFor({n_out, n_in});
}

PackedMatrix PackedMatrix::In(std::byte* zeros, int64_t n_out, int64_t n_in, WeightType type) {
  KVL_CHECK_GE(n_out, 1);
  KVL_CHECK_GE(n_in, 1);
  PackedMatrix m;
  m.format_ = &FormatOf(type);
  m.size_ = {n_out, n_in};
  m.data_ = zeros;
  return m;
}

StatusOr<PackedMatrix> PackedMatrix::Create(int64_t n_out, int64_t n_in, WeightType type) {
  KVL_ASSIGN_OR_RETURN(Buffer buffer,
                       Buffer::Allocate(BytesFor(n_out, n_in, type), "a weight matrix"));
  PackedMatrix m = In(buffer.data(), n_out, n_in, type);
  m.buffer_ = std::move(buffer);
  return m;
}

void PackedMatrix::PackRows(int64_t first_out, int64_t n_rows, DType dtype, const void* rows,
                            int64_t row_stride) {
  KVL_CHECK_GE(first_out, 0);
  KVL_CHECK_LE(first_out + n_rows, size_.n_out);
  format_->Pack(size_, {first_out, n_rows, dtype, rows, row_stride}, data_);
}

void PackedMatrix::UnpackRow(int64_t out, float* row) const {
  KVL_CHECK_GE(out, 0);
  KVL_CHECK_LT(out, size_.n_out);
  format_->Unpack(size_, data_, out, row);
}

void PackedMatrix::UnpackRows(int64_t first_out, int64_t n_rows, float* rows) const {
  KVL_CHECK_GE(first_out, 0);
  KVL_CHECK_LE(first_out + n_rows, size_.n_out);
  format_->UnpackRows(size_, data_, first_out, n_rows, rows);
}

}  // namespace kvlathe

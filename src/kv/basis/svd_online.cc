#include "kv/basis/svd_online.h"

#include <Eigen/Core>
#include <atomic>
#include <vector>

#include "kernels/cpu/block_layout.h"
#include "kv/basis/gram.h"
#include "kv/basis/spectrum.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// K or V of a head: where its rows lie and where they go.
struct Side {
  bool is_key;
  int dim;
  int rank;
  int64_t plain_offset;  // bytes from the start of a plain block
  int64_t packed_offset;
  int64_t rotation_offset;  // of the record
};

RowMajor ReadRows(const OnlineSvdHead& head, const Side& side) {
  const DType type = head.shape.row_type;
  RowMajor rows(int64_t{head.shape.n_blocks} * kBlockSize, side.dim);
  std::vector<float> values(int64_t{kBlockSize} * side.dim);
  for (int b = 0; b < head.shape.n_blocks; ++b) {
    ConvertToFloat(type, head.blocks[b] + side.plain_offset, std::ssize(values), values.data());
    for (int t = 0; t < kBlockSize; ++t) {
      for (int i = 0; i < side.dim; ++i) {
        rows(b * kBlockSize + t, i) =
            values[side.is_key ? KeyOffset(t, i) : ValueOffset({.rank_v = side.dim}, t, i)];
      }
    }
  }
  return rows;
}

// [dim, rank] as the record has it.
void FindRotation(const RowMajor& rows, const Side& side, DType type, std::byte* to) {
  const Eigen::MatrixXd exact = rows.cast<double>();
  std::vector<double> gram(int64_t{side.dim} * side.dim);
  Eigen::Map<Eigen::MatrixXd>(gram.data(), side.dim, side.dim).noalias() =
      exact.transpose() * exact;
  const Spectrum spectrum = DecomposeGram(gram, side.dim);
  std::vector<float> rotation;
  for (int i = 0; i < side.dim; ++i) {
    for (int r = 0; r < side.rank; ++r) {
      rotation.push_back(static_cast<float>(spectrum.vectors[int64_t{i} * side.dim + r]));
    }
  }
  ConvertFromFloat(type, rotation.data(), std::ssize(rotation), to);
}

bool SealSide(const OnlineSvdHead& head, const Side& side) {
  const DType type = head.shape.row_type;
  const RowMajor rows = ReadRows(head, side);
  if (!rows.allFinite()) return false;
  const std::byte* from = head.rotations;
  if (head.record != nullptr) {
    FindRotation(rows, side, type, head.record + side.rotation_offset);
    from = head.record;
  }
  RowMajor rotation(side.dim, side.rank);
  ConvertToFloat(type, from + side.rotation_offset, rotation.size(), rotation.data());
  const RowMajor short_rows = rows * rotation;
  std::vector<float> values(int64_t{kBlockSize} * side.rank);
  for (int b = 0; b < head.shape.n_blocks; ++b) {
    for (int t = 0; t < kBlockSize; ++t) {
      for (int r = 0; r < side.rank; ++r) {
        values[KeyOffset(t, r)] = short_rows(b * kBlockSize + t, r);
      }
    }
    ConvertFromFloat(type, values.data(), std::ssize(values), head.packed[b] + side.packed_offset);
  }
  return true;
}

bool SealHeadRows(const OnlineSvdHead& head) {
  const PackedShape& s = head.shape;
  const int64_t element = SizeOf(s.row_type);
  const Side k = {true, s.rank_k, SvdRank(s, s.rank_k), 0, 0, 0};
  const Side v = {false,
                  s.rank_v,
                  SvdRank(s, s.rank_v),
                  kBlockSize * s.rank_k * element,
                  SvdValueOffset(s),
                  SvdValueRotationOffset(s)};
  return SealSide(head, k) && SealSide(head, v);
}

}  // namespace

Status SealByOnlineSvd(std::span<const OnlineSvdHead> heads, ThreadPool* pool) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> all_finite = true;
  pool->Run([&](int) {
    for (size_t h = next++; h < heads.size(); h = next++) {
      if (!SealHeadRows(heads[h])) all_finite = false;
    }
  });
  if (all_finite) return OkStatus();
  return Error(StatusCode::kDataLoss, "rows to compress are not finite");
}

}  // namespace kvlathe

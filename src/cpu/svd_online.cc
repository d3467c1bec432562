#include "cpu/svd_online.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "analysis/statistics/gram.h"
#include "analysis/statistics/spectrum.h"
#include "format/rows/block_layout.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// Blocks whose products are summed in F32 before they join those of the others in F64.
constexpr int kSumBlocks = 8;

// K or V of a head: where its rows lie and where they go.
struct Side {
  bool is_key;
  int dim;
  int rank;
  int64_t plain_offset = 0;  // bytes from the start of a plain block
  int64_t packed_offset = 0;
  int64_t rotation_offset = 0;  // of the record
};

Status NotFinite() {
  return Error(StatusCode::kDataLoss, "rows to compress are not finite, or too large");
}

template <typename Element>
void ToRows(const Side& side, const std::byte* plain, std::byte* out) {
  const auto* const from = reinterpret_cast<const Element*>(plain);
  auto* const rows = reinterpret_cast<Element*>(out);
  const BlockShape values = {.rank_v = side.dim};
  for (int t = 0; t < kBlockSize; ++t) {
    for (int i = 0; i < side.dim; ++i) {
      rows[t * side.dim + i] = from[side.is_key ? KeyOffset(t, i) : ValueOffset(values, t, i)];
    }
  }
}

template <typename Element>
void FromRows(const std::byte* in, int rank, std::byte* packed) {
  const auto* const rows = reinterpret_cast<const Element*>(in);
  auto* const to = reinterpret_cast<Element*>(packed);
  for (int t = 0; t < kBlockSize; ++t) {
    for (int r = 0; r < rank; ++r) to[KeyOffset(t, r)] = rows[t * rank + r];
  }
}

// Rows of one block at a time.
class BlockRows {
 public:
  BlockRows(const OnlineSvdHead& head, const Side& side)
      : head_(head),
        side_(side),
        rows_(kBlockSize * side.dim * SizeOf(head.shape.row_type)),
        floats_(int64_t{kBlockSize} * side.dim) {}

  // False where one is not finite.
  bool Read(int block) {
    const std::byte* const plain = head_.blocks[block] + side_.plain_offset;
    const DType type = head_.shape.row_type;
    (type == DType::kF32 ? ToRows<float> : ToRows<uint16_t>)(side_, plain, rows_.data());
    ConvertToFloat(type, rows_.data(), std::ssize(floats_), floats_.data());
    int n_finite = 0;
    for (const float x : floats_) n_finite += std::isfinite(x) ? 1 : 0;
    return n_finite == std::ssize(floats_);
  }
  const std::byte* rows() const { return rows_.data(); }  // [kBlockSize, dim] in row_type
  const float* floats() const { return floats_.data(); }

 private:
  const OnlineSvdHead& head_;
  const Side& side_;
  std::vector<std::byte> rows_;
  std::vector<float> floats_;
};

// A symmetric matrix of which a triangle is there.
void AddUpper(const std::vector<float>& upper, int dim, std::vector<double>* sum) {
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t j = 0; j < dim; ++j) {
      (*sum)[i * dim + j] += upper[std::min(i, j) * dim + std::max(i, j)];
    }
  }
}

// Of all rows; empty where one is not finite.
std::vector<double> GramOfRows(const OnlineSvdHead& head, const Side& side,
                               const ElementwiseKernels& kernels) {
  BlockRows rows(head, side);
  const int64_t square = int64_t{side.dim} * side.dim;
  std::vector<double> gram(square);
  std::vector<float> part(square);
  for (int b = 0; b < head.shape.n_blocks; ++b) {
    if (!rows.Read(b)) return {};
    kernels.add_gram(rows.floats(), kBlockSize, side.dim, part.data());
    if ((b + 1) % kSumBlocks != 0 && b + 1 < head.shape.n_blocks) continue;
    AddUpper(part, side.dim, &gram);
    std::ranges::fill(part, 0.0f);
  }
  return gram;
}

// What the side's rotation is found from.
StatusOr<std::vector<double>> StackedRows(const OnlineSvdHead& head, const Side& side,
                                          const ElementwiseKernels& kernels) {
  std::vector<double> gram = GramOfRows(head, side, kernels);
  if (gram.empty()) return NotFinite();
  if (side.is_key && head.query_gram != nullptr) {
    std::vector<double> queries(gram.size());
    AddUpper({head.query_gram, head.query_gram + gram.size()}, side.dim, &queries);
    gram = StackedGram(queries, gram, head.is_normalised, side.dim);
  }
  if (!side.is_key && head.output_gram != nullptr) {
    const std::vector<double> outputs(head.output_gram, head.output_gram + gram.size());
    gram = StackedGram(gram, outputs, head.is_normalised, side.dim);
  }
  if (!AllFinite(gram)) return NotFinite();
  return gram;
}

// [dim, rank] as the record has it.
Status FindRotation(const OnlineSvdHead& head, const Side& side,
                    const ElementwiseKernels& kernels) {
  KVL_ASSIGN_OR_RETURN(const std::vector<double> gram, StackedRows(head, side, kernels));
  const Spectrum spectrum = DecomposeGram(gram, side.dim);
  std::vector<float> rotation;
  for (int i = 0; i < side.dim; ++i) {
    for (int r = 0; r < side.rank; ++r) {
      rotation.push_back(static_cast<float>(spectrum.vectors[int64_t{i} * side.dim + r]));
    }
  }
  ConvertFromFloat(head.shape.row_type, rotation.data(), std::ssize(rotation),
                   head.record + side.rotation_offset);
  return OkStatus();
}

// R^T [rank, dim] of R [dim, rank].
StatusOr<PackedMatrix> PackRotation(const std::byte* rotation, const Side& side, DType type) {
  std::vector<float> r(int64_t{side.dim} * side.rank), transposed(r.size());
  ConvertToFloat(type, rotation, std::ssize(r), r.data());
  for (int i = 0; i < side.dim; ++i) {
    for (int j = 0; j < side.rank; ++j) transposed[j * side.dim + i] = r[i * side.rank + j];
  }
  KVL_ASSIGN_OR_RETURN(PackedMatrix packed,
                       PackedMatrix::Create(side.rank, side.dim, DenseWeights(type)));
  packed.PackRows(0, side.rank, DType::kF32, transposed.data(), side.dim);
  return packed;
}

Status SealSide(const OnlineSvdHead& head, const Side& side, const OnlineSvdKernels& kernels,
                int worker_id) {
  const std::byte* from = head.rotations;
  if (head.record != nullptr) {
    KVL_RETURN_IF_ERROR(FindRotation(head, side, *kernels.elementwise));
    from = head.record;
  }
  const DType type = head.shape.row_type;
  KVL_ASSIGN_OR_RETURN(const PackedMatrix rotation,
                       PackRotation(from + side.rotation_offset, side, type));
  BlockRows rows(head, side);
  std::vector<std::byte> short_rows(kBlockSize * side.rank * SizeOf(type));
  const LinearParams product = {.w = &rotation,
                                .n_rows = kBlockSize,
                                .x_type = type,
                                .x = rows.rows(),
                                .x_stride = side.dim,
                                .y = short_rows.data(),
                                .y_stride = side.rank,
                                .y_type = type};
  for (int b = 0; b < head.shape.n_blocks; ++b) {
    if (!rows.Read(b)) return NotFinite();
    kernels.linear->RunOnWorker(product, worker_id);
    (type == DType::kF32
         ? FromRows<float>
         : FromRows<uint16_t>)(short_rows.data(), side.rank, head.packed[b] + side.packed_offset);
  }
  return OkStatus();
}

Status SealHeadRows(const OnlineSvdHead& head, const OnlineSvdKernels& kernels, int worker_id) {
  const PackedShape& s = head.shape;
  const auto& ranks = std::get<RotatedRanks>(s.storage);
  const Side k = {.is_key = true, .dim = s.rank_k, .rank = ranks.k};
  const Side v = {.is_key = false,
                  .dim = s.rank_v,
                  .rank = ranks.v,
                  .plain_offset = kBlockSize * s.rank_k * SizeOf(s.row_type),
                  .packed_offset = RotatedValueOffset(ranks, s),
                  .rotation_offset = ValueRotationOffset(ranks, s)};
  KVL_RETURN_IF_ERROR(SealSide(head, k, kernels, worker_id));
  return SealSide(head, v, kernels, worker_id);
}

}  // namespace

Status SealByOnlineSvd(std::span<const OnlineSvdHead> heads, const OnlineSvdKernels& kernels) {
  std::atomic<size_t> next = 0;
  std::vector<Status> statuses(heads.size());
  kernels.pool->Run([&](int worker_id) {
    for (size_t h = next++; h < heads.size(); h = next++) {
      statuses[h] = SealHeadRows(heads[h], kernels, worker_id);
    }
  });
  const auto failed = std::ranges::find_if(statuses, [](const Status& s) { return !s.ok(); });
  return failed == statuses.end() ? OkStatus() : *failed;
}

}  // namespace kvlathe

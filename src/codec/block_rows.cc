#include "codec/block_rows.h"

#include <algorithm>
#include <utility>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// pairs [n][2] into two rows.
template <typename T>
void SplitPairs(const T* __restrict pairs, int n, float* __restrict first,
                float* __restrict second) {
  for (int i = 0; i < n; ++i) {
    first[i] = ToFloat(pairs[2 * i]);
    second[i] = ToFloat(pairs[2 * i + 1]);
  }
}

// Two channels of a key lie side by side, and so do the numbers of two values.
template <typename T>
void UnpackNumbers(const BlockShape& shape, const T* block, int n, const RowsOfHead& to) {
  constexpr int kTile = 8;  // tokens whose pairs are one line of the cache
  for (int first = 0; first < n; first += kTile) {
    const int last = std::min(n, first + kTile);
    for (int r = 0; r < shape.rank_k; r += 2) {
      const T* const pairs = block + KeyOffset(0, r);
      for (int t = first; t < last; ++t) {
        to.k[t * to.k_stride + r] = ToFloat(pairs[2 * t]);
        to.k[t * to.k_stride + r + 1] = ToFloat(pairs[2 * t + 1]);
      }
    }
  }
  if (shape.has_one_side) {
    for (int t = 0; t < n; ++t) {
      std::copy_n(to.k + t * to.k_stride, shape.rank_k, to.v + t * to.v_stride);
    }
    return;
  }
  const T* const values = block + KeyOffset(0, shape.rank_k);
  std::vector<float> behind(shape.rank_v);  // what lies beside the last of an odd number
  for (int t = 0; t < n; t += 2) {
    float* const even = to.v + t * to.v_stride;
    SplitPairs(values + ValueOffset(shape, t, 0), shape.rank_v, even,
               t + 1 < n ? even + to.v_stride : behind.data());
  }
}

}  // namespace

void UnpackBlock(const BlockShape& shape, const std::byte* block, int n, const RowsOfHead& to) {
  if (shape.row_type == DType::kF32) {
    UnpackNumbers(shape, reinterpret_cast<const float*>(block), n, to);
  } else {
    UnpackNumbers(shape, reinterpret_cast<const Bf16*>(block), n, to);
  }
}

ScratchBlocks::~ScratchBlocks() {
  Begin();
  Begin();
}

void ScratchBlocks::Begin() {
  for (const auto& [n_bytes, objects] : free_) {
    for (const ObjectId& object : objects) pool_.Release(object);
  }
  free_ = std::move(taken_);
  taken_.clear();
}

StatusOr<std::vector<ObjectId>> ScratchBlocks::Take(int64_t n, int64_t n_bytes) {
  std::vector<ObjectId> objects;
  std::vector<ObjectId>& from = free_[n_bytes];
  for (int64_t i = 0; i < n; ++i) {
    ObjectId object;
    if (from.empty()) {
      object = pool_.Allocate(ObjectKind::kBlock, n_bytes);
    } else {
      object = from.back();
      from.pop_back();
    }
    if (object.is_null()) {
      return Error(StatusCode::kResourceExhausted, "no memory to read {} blocks of {} bytes", n,
                   n_bytes);
    }
    taken_[n_bytes].push_back(object);
    objects.push_back(object);
  }
  return objects;
}

}  // namespace kvlathe

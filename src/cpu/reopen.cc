#include "cpu/reopen.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "cpu/kernels/attend/attend_packed.h"

namespace kvlathe {
namespace {

void Round(float x, float* to) { *to = x; }
void Round(float x, Bf16* to) { *to = ToBf16(x); }

// K or V of the row in `slot` of a block, both sides in the order of plain blocks.
template <typename From, typename To>
void CopyRow(const BlockShape& shape, const From* from, int slot, To* to, int to_slot) {
  const From* from_v = from + KeyOffset(0, shape.rank_k);
  To* to_v = to + KeyOffset(0, shape.rank_k);
  for (int r = 0; r < shape.rank_k; ++r) {
    Round(ToFloat(from[KeyOffset(slot, r)]), &to[KeyOffset(to_slot, r)]);
  }
  for (int r = 0; r < shape.rank_v; ++r) {
    Round(ToFloat(from_v[ValueOffset(shape, slot, r)]), &to_v[ValueOffset(shape, to_slot, r)]);
  }
}

// All rows of a block: their order is the same on both sides.
template <typename From, typename To>
void CopyBlock(const BlockShape& shape, const From* from, To* to) {
  const int64_t n = int64_t{kBlockSize} * (shape.rank_k + shape.rank_v);
  for (int64_t i = 0; i < n; ++i) Round(ToFloat(from[i]), &to[i]);
}

// Reads the sealed blocks of a head in ascending order.
class SealedBlockReader {
 public:
  explicit SealedBlockReader(const HeadEntries& head)
      : head_(head),
        params_{.shape = head.shape, .packed = &head.packed},
        values_(int64_t{kBlockSize} * (head.shape.rank_k + head.shape.rank_v)) {}

  // In the order of a plain block, until the next call; null where the block is plain.
  const float* Read(int block_idx) {
    const PackedRun* run = FindRun(head_.packed, block_idx, &run_idx_);
    if (run == nullptr) return nullptr;
    if (run != run_) view_ = ViewRun(params_, *run);
    run_ = run;
    ExpandPackedBlock(view_, head_.blocks[block_idx], block_idx - run->first_block, values_.data());
    return values_.data();
  }

 private:
  const HeadEntries& head_;
  AttendParams params_;
  std::vector<float> values_;
  int run_idx_ = 0;
  const PackedRun* run_ = nullptr;
  PackedRunView view_;
};

template <typename T>
int CopyKeptAs(const HeadEntries& from, std::span<const int> dropped,
               std::span<std::byte* const> to) {
  SealedBlockReader reader(from);
  auto next_dropped = dropped.begin();
  int n_kept = 0, n_sealed = 0;
  for (int begin = 0; begin < from.n_entries; begin += kBlockSize) {
    const int block_idx = begin / kBlockSize;
    const float* values = reader.Read(block_idx);
    const T* rows = reinterpret_cast<const T*>(from.blocks[block_idx]);
    const bool keeps_all = next_dropped == dropped.end() && from.n_entries - begin >= kBlockSize;
    if (keeps_all && n_kept % kBlockSize == 0) {
      T* block = reinterpret_cast<T*>(to[n_kept / kBlockSize]);
      if (values != nullptr) {
        CopyBlock(from.shape, values, block);
      } else {
        CopyBlock(from.shape, rows, block);
      }
      n_kept += kBlockSize;
      if (values != nullptr) n_sealed = n_kept;
      continue;
    }
    for (int e = begin; e < std::min(from.n_entries, begin + kBlockSize); ++e) {
      if (next_dropped != dropped.end() && *next_dropped == e) {
        ++next_dropped;
        continue;
      }
      T* block = reinterpret_cast<T*>(to[n_kept / kBlockSize]);
      const int slot = n_kept++ % kBlockSize;
      if (values != nullptr) {
        CopyRow(from.shape, values, e - begin, block, slot);
      } else {
        CopyRow(from.shape, rows, e - begin, block, slot);
      }
    }
    if (values != nullptr) n_sealed = n_kept;
  }
  return n_sealed;
}

template <typename T>
Reencoding MeasureAs(const HeadEntries& sealed, std::span<std::byte* const> plain, int n_rows) {
  SealedBlockReader reader(sealed);
  const BlockShape& shape = sealed.shape;
  Reencoding sums = {.n_rows = n_rows};
  const auto add = [](double before, double after, double* error, double* norm) {
    *error += (after - before) * (after - before);
    *norm += before * before;
  };
  for (int begin = 0; begin < n_rows; begin += kBlockSize) {
    const float* after_k = reader.Read(begin / kBlockSize);
    KVL_CHECK(after_k != nullptr);
    const float* after_v = after_k + KeyOffset(0, shape.rank_k);
    const T* k = reinterpret_cast<const T*>(plain[begin / kBlockSize]);
    const T* v = k + KeyOffset(0, shape.rank_k);
    for (int slot = 0; slot < std::min(kBlockSize, n_rows - begin); ++slot) {
      for (int r = 0; r < shape.rank_k; ++r) {
        const int64_t at = KeyOffset(slot, r);
        add(ToFloat(k[at]), after_k[at], &sums.k_error, &sums.k_norm);
      }
      for (int r = 0; r < shape.rank_v; ++r) {
        const int64_t at = ValueOffset(shape, slot, r);
        add(ToFloat(v[at]), after_v[at], &sums.v_error, &sums.v_norm);
      }
    }
  }
  return sums;
}

}  // namespace

int CopyKept(const HeadEntries& from, std::span<const int> dropped,
             std::span<std::byte* const> to) {
  return from.shape.row_type == DType::kF32 ? CopyKeptAs<float>(from, dropped, to)
                                            : CopyKeptAs<Bf16>(from, dropped, to);
}

Reencoding MeasureReencoding(const HeadEntries& sealed, std::span<std::byte* const> plain,
                             int n_rows) {
  return sealed.shape.row_type == DType::kF32 ? MeasureAs<float>(sealed, plain, n_rows)
                                              : MeasureAs<Bf16>(sealed, plain, n_rows);
}

}  // namespace kvlathe

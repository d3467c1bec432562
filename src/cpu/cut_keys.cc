#include "cpu/cut_keys.h"

#include <cstring>

#include "base/check.h"

namespace kvlathe {
namespace {

template <typename T>
void ReadKeysAs(const BlockShape& shape, int n_rows, const std::byte* block, std::byte* rows) {
  const T* from = reinterpret_cast<const T*>(block);
  T* to = reinterpret_cast<T*>(rows);
  for (int slot = 0; slot < n_rows; ++slot) {
    for (int r = 0; r < shape.rank_k; ++r) *to++ = from[KeyOffset(slot, r)];
  }
}

template <typename T>
void WriteKeysAs(const BlockShape& shape, const KeyRowsView& rows, std::byte* block) {
  const T* from = reinterpret_cast<const T*>(rows.first);
  T* to = reinterpret_cast<T*>(block);
  for (int slot = 0; slot < rows.n_rows; ++slot) {
    for (int r = 0; r < shape.rank_k; ++r) {
      to[KeyOffset(slot, r)] = from[slot * rows.stride + r];
    }
  }
}

}  // namespace

void ReadKeys(const BlockShape& shape, int n_rows, const std::byte* block, std::byte* rows) {
  if (shape.row_type == DType::kF32) {
    ReadKeysAs<uint32_t>(shape, n_rows, block, rows);
  } else {
    ReadKeysAs<uint16_t>(shape, n_rows, block, rows);
  }
}

void WriteKeys(const BlockShape& shape, const KeyRowsView& rows, std::byte* block) {
  if (shape.row_type == DType::kF32) {
    WriteKeysAs<uint32_t>(shape, rows, block);
  } else {
    WriteKeysAs<uint16_t>(shape, rows, block);
  }
}

void MoveValuesTo(const BlockShape& to, const BlockShape& from, std::byte* block) {
  KVL_CHECK(to.rank_k <= from.rank_k && to.rank_v == from.rank_v);
  const int64_t n_bytes = BlockBytes(from) - KeyBytes(from);
  std::memmove(block + KeyBytes(to), block + KeyBytes(from), static_cast<size_t>(n_bytes));
}

}  // namespace kvlathe

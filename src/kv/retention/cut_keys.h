// Plain blocks of whole keys that become blocks of fewer key columns, in place: the smaller block
// lies at the start of the larger.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/block_layout.h"

namespace kvlathe {

// The keys of the first n_rows entries of a block, to rows [n_rows, rank_k].
void ReadKeys(const BlockShape& shape, int n_rows, const std::byte* block, std::byte* rows);

// The first rank_k numbers of n_rows rows become the keys of the first entries of a block.
struct KeyRowsView {
  const std::byte* first;
  int64_t stride;  // elements
  int n_rows;
};
void WriteKeys(const BlockShape& shape, const KeyRowsView& rows, std::byte* block);

// The values of a block of shape `from` take their place behind the keys of `to`, which has no more
// of them. They overwrite what was behind those keys.
void MoveValuesTo(const BlockShape& to, const BlockShape& from, std::byte* block);

}  // namespace kvlathe

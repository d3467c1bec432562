// Turns plain blocks of whole keys into blocks of fewer key columns in place; the smaller block
// lies at the start of the larger one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/rows/block_layout.h"

namespace kvlathe {

// Copies the keys of the first n_rows entries of a block to rows [n_rows, rank_k].
void ReadKeys(const BlockShape& shape, int n_rows, const std::byte* block, std::byte* rows);

// Makes the first rank_k numbers of n_rows rows the keys of the first entries of a block.
struct KeyRowsView {
  const std::byte* first;
  int64_t stride;  // elements
  int n_rows;
};
void WriteKeys(const BlockShape& shape, const KeyRowsView& rows, std::byte* block);

// Moves the values of a block of shape `from` to where shape `to` has them, behind its keys, of
// which it has as many or fewer. What was behind those keys is overwritten.
void MoveValuesTo(const BlockShape& to, const BlockShape& from, std::byte* block);

}  // namespace kvlathe

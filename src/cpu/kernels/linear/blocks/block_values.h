// The codes and scales of one block, between its bytes in a file and its place among 16 outputs
// (cpu/kernels/linear/blocks/block_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/linear/blocks/block_layout.h"

namespace kvlathe {

struct CodedBlock {
  uint8_t codes[kLongBlock];  // of 8 bits: the bits of signed numbers
  uint16_t scale;             // F16, or an exponent
  uint16_t min;               // F16
  uint8_t unit_scales[kMaxUnits];
  uint8_t unit_mins[kMaxUnits];
};

// Bytes of a block as ggml stores it.
int64_t StoredBlockBytes(WeightType type);

// Puts a row of n_blocks blocks of ggml into groups, as output `out` of each, 0 to 15.
void PackStoredRow(WeightType type, const std::byte* stored, int64_t n_blocks, int out,
                   std::byte* groups);

// A block of output `out` of a group.
void TakeBlock(const BlockLayout& layout, const std::byte* group, int out, CodedBlock* values);

// What scales of a block and of its units make: a value is scale * (number its code stands for)
// minus min.
struct UnitFactors {
  float scale;
  float min;
};
UnitFactors FactorsOf(const BlockLayout& layout, const CodedBlock& values, int unit);
// The number that a code stands for, its zero taken off.
int NumberOf(const BlockLayout& layout, uint8_t code);

// The block's values, bit for bit as DequantizeBlocks (io/gguf/ggml_types.h) gives them.
void BlockToFloats(const BlockLayout& layout, const CodedBlock& values, float* to);

}  // namespace kvlathe

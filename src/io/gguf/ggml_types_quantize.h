// F32 values become the blocks of a type of GGUF files: the inverse of DequantizeBlocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/gguf/ggml_types.h"

namespace kvlathe {

// Writes the n values of `from`, a multiple of the type's block_values and all finite, as n /
// block_values blocks to `to`, which needs no alignment. The same values give the same bytes on
// every machine and in every thread.
//
// Scales (and minima) are searched for: a group of values tries some, gets the best by least
// squares and then its codes from the scales as the block stores them. The squares of errors are
// weighed by the magnitude of their value plus the root of the block's mean square, so that large
// values, which outputs depend on most, are kept best.
//
// What a type cannot hold becomes the nearest that it can: a number beyond the range of F16 or
// BF16 becomes the largest finite one, and so does a scale that would leave the range of F16 (the
// values that it cannot reach become the largest that the block can hold). Blocks whose values are
// all below 2^-26 become zeros in types with F16 scales.
void QuantizeBlocks(GgmlType type, const float* from, int64_t n, std::byte* to);

}  // namespace kvlathe

// Products of weights in blocks (cpu/kernels/linear/blocks/block_layout.h) with rows of integers.
// Light enough for files compiled with instruction set flags.
//
// A row has the same bits whatever the rows and outputs beside it.
#pragma once

#include "cpu/kernels/linear/blocks/quantized_rows.h"
#include "cpu/kernels/linear/linear_part.h"
#include "machine/weight_type.h"

namespace kvlathe {

// part.w is the first group of 16 outputs and w_stride the bytes to those of the next 16; part.x is
// not read.
void MultiplyBlocksScalar(WeightType type, const LinearPart& part, const QuantizedRows& x);
void MultiplyBlocksAvx2(WeightType type, const LinearPart& part, const QuantizedRows& x);
// With the integer dots of AVX-VNNI (HasAvxVnni of base/cpu_features.h).
void MultiplyBlocksAvxVnni(WeightType type, const LinearPart& part, const QuantizedRows& x);
// With the integer dots of AVX-512 VNNI.
void MultiplyBlocksAvx512(WeightType type, const LinearPart& part, const QuantizedRows& x);

}  // namespace kvlathe

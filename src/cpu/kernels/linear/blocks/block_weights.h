// Weights in blocks of ggml as a format of products (cpu/kernels/linear/blocks/block_layout.h).
// Bf16 rows become integers of 8 bits (Linear does it, once for all workers); F32 rows, and Bf16
// rows where Linear is told to be exact, meet the numbers that weights stand for.
#pragma once

#include "cpu/kernels/linear/weight_format.h"

namespace kvlathe {

const WeightFormat& BlockWeights(WeightType type);

}  // namespace kvlathe

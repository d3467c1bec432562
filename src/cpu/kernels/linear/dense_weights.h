// Weights that are stored as numbers of the type of the rows that they are multiplied with, W^T.
//
// In BF16 it has oneDNN's format BA16a64b2a, which is [n_out / 64][n_in / 2][64][2] with n_out
// padded to 64 and n_in to 32. oneDNN's BF16 matmul picks this format for itself on AVX-512 BF16,
// and its inner [16][64][2] is four B tiles of AMX side by side. In F32 it is a plain
// [n_in][n_out padded to 16].
#pragma once

#include "cpu/kernels/linear/weight_format.h"

namespace kvlathe {

const WeightFormat& Bf16Weights();
const WeightFormat& F32Weights();

}  // namespace kvlathe

// The signs of a residual: a Johnson-Lindenstrauss transform to one bit (QJL, arXiv 2406.03482) of
// what codes have lost of a key, as TurboQuant adds it for products without bias (arXiv 2504.19874,
// algorithm 2). With n channels and a rotation S of which every row is a random direction of length
// sqrt(n),
//
//   r is taken for sqrt(pi / 2) / n * |r| * S^T sign(S r),
//
// whose product with any q has the mean q r over the draws of S. Here S = sqrt(n) Q D: D changes
// signs of channels (SignOfChannel), and Q is the Hadamard matrix over sqrt(n), of every largest
// power of two of channels in turn where their number is none. Keys come by lines, as a block holds
// them (rows/block_layout.h).
#pragma once

#include "format/rows/block_layout.h"

namespace kvlathe {

// The number that a code's sign stands for, by codes of 2 to 4 bits: 1, or -1 where its highest bit
// is set.
const int8_t* NumbersOfSigns(int bits);

// Turns the residuals of the keys of a block in place: r becomes Q D r.
void TurnResiduals(int rank, float* residuals);

// Adds D Q s to the keys of a block. s, which it overwrites, has the signs times
// ResidualUnit(rank) * |r|.
void AddResiduals(int rank, float* s, float* keys);

// sqrt(pi / 2) / sqrt(n).
float ResidualUnit(int rank);

// Sets the highest bit of each code of the keys of a block whose turned residual is negative; it
// was 0.
void WriteSigns(int bits, int rank, const float* turned, std::byte* codes);

}  // namespace kvlathe

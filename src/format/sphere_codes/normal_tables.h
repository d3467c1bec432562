// The numbers that codes of one to four bits stand for where what is coded is normal: those with
// which the expected squared error of a standard normal number is least (Lloyd, "Least Squares
// Quantization in PCM", 1982; Max, "Quantizing for Minimum Distortion", 1960). Each is the mean of
// what lies nearer to it than to its neighbours. They are worked out from that by the compiler.
#pragma once

#include <array>

#include "format/table_codes/code_table.h"

namespace kvlathe {

inline constexpr int kMostNormalBits = 4;

// Kernels multiply whole numbers, so the levels are rounded to multiples of a step; the largest is
// at most 127 steps. That adds less than a hundredth to the squared error. `table.unit` only keeps
// stored scales in the middle of F16: a level is number * step, and its code stands for
// number * table.unit under the scale step / table.unit.
struct NormalTable {
  NamedTable table;
  float step;
};

extern const std::array<NormalTable, kMostNormalBits> kNormalTables;  // [bits - 1]

}  // namespace kvlathe

// Weights in blocks between the types of files and those of machines, and how plain numbers become
// such blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "io/gguf/ggml_types.h"
#include "machine/residents.h"
#include "machine/weight_type.h"

namespace kvlathe {

// The type of weights that keeps a file's blocks as they are; none for plain numbers.
std::optional<WeightType> WeightTypeOf(GgmlType type);
// The other way round; of a type with blocks.
GgmlType StoredTypeOf(WeightType type);

// `type`, or where n_in inputs are no whole blocks of it the nearest that they are: kQ8_0, or
// `dense`.
WeightType FittingType(WeightType type, int64_t n_in, WeightType dense);

// Rows [first_out, first_out + n_rows) of a matrix of any type from floats [n_rows, n_in]. Threads
// may share no group of 64.
void WriteFloats(int64_t first_out, int64_t n_rows, const float* rows, Weight* matrix);

}  // namespace kvlathe

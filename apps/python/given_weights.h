// What a caller in Python knows of the weights of a model's attention.
#pragma once

#include <nanobind/nanobind.h>

#include "codec/given_statistics.h"
#include "model/config.h"

namespace kvlathe::python {

// Of a kvlathe.codec.WeightGrams or None. ValueError or TypeError, with one line, where an array
// has another shape or type than that class says.
GivenWeights ReadGivenWeights(const nanobind::object& weights, const ModelConfig& config);

}  // namespace kvlathe::python

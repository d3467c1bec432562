// The three types of numbers of a model: what its weights are stored in, what activations are on
// their way through its products, and what rows of keys and values are.
#pragma once

#include "machine/weight_type.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct NumberTypes {
  WeightType weights = WeightType::kBf16;
  bool keeps_blocks = false;         // weights that a file stores in blocks stay in them
  DType activations = DType::kBf16;  // kBf16 or kF32, one that the machine multiplies weights with
  DType rows = DType::kBf16;         // of queries, keys and values once they are turned, and of the
                                     // cache's plain blocks: kBf16 or kF32

  NumberTypes() = default;
  // All of one type, kBf16 or kF32.
  NumberTypes(DType all)  // NOLINT(google-explicit-constructor): most callers have one type
      : weights(DenseWeights(all)), activations(all), rows(all) {}
  NumberTypes(WeightType of_weights, DType of_activations, DType of_rows)
      : weights(of_weights), activations(of_activations), rows(of_rows) {}

  // Of a matrix whose inputs are no whole blocks.
  WeightType dense_weights() const {
    return HasBlocks(weights) ? DenseWeights(activations) : weights;
  }
};

}  // namespace kvlathe

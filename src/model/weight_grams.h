// What analyses of bases ask of the weights of a model: Gram matrices and biases, head by head.
#pragma once

#include <vector>

#include "base/threads.h"
#include "model/weights.h"

namespace kvlathe {

// Of the whole model, also where a shard of it is held.
class WeightGrams {
 public:
  // [n_layers * n_kv_heads], each [head_dim, head_dim].
  using HeadMatrices = std::vector<std::vector<double>>;
  // [n_layers * n_kv_heads], each [head_dim].
  using HeadVectors = std::vector<std::vector<float>>;

  // `weights` outlives this. Errors are those of its reader.
  explicit WeightGrams(ModelWeights* weights)
      : weights_(*weights), config_(weights->whole_config()) {}

  // Returns W_V,h^T W_V,h of every layer and KV head, in the (D x d) orientation of y = x W; FDC
  // and Palu decompose it. With n_joined, a divisor of n_kv_heads, that many heads count as one of
  // n_joined * head_dim channels.
  StatusOr<HeadMatrices> ValueGrams(int n_joined = 1);
  // The same of W_K (Palu). Where keys are normalised, the rows of W_K are multiplied by the
  // weights of the norm first, and lose their mean if it takes one off: these are the keys up to a
  // factor of each row's own.
  StatusOr<HeadMatrices> KeyGrams(int n_joined = 1);
  // Returns the sum of W_O,h W_O,h^T over the query heads of each KV head, in the same shape. It
  // says how much an error of a value row weighs in the hidden state.
  StatusOr<HeadMatrices> OutputGrams(ThreadPool* pool);
  // Return the biases of keys and values of every layer and KV head. The list is empty for a model
  // without biases, and for normalised keys, which are no sum of a product and a bias.
  StatusOr<HeadVectors> KeyBiases();
  StatusOr<HeadVectors> ValueBiases();

 private:
  StatusOr<HeadMatrices> ValueGramsOf(int layer_idx, int n_joined);
  StatusOr<HeadMatrices> KeyGramsOf(int layer_idx, int n_joined);
  StatusOr<HeadMatrices> OutputGramsOf(int layer_idx, ThreadPool* pool);

  ModelWeights& weights_;
  const ModelConfig& config_;
};

}  // namespace kvlathe

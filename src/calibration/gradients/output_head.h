// The output head goes from the residual stream behind the last layer to tokens that are drawn from
// what the model predicts, and back: to the gradient of the log-likelihood of those tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/model_norms.h"
#include "calibration/gradients/products.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "model/weights.h"

namespace kvlathe {

struct DrawnTokens {
  std::vector<int32_t> ids;   // [n_tokens]: of every position, what follows it
  double log_likelihood = 0;  // the sum over positions of log p(ids), in nats
};

// Logits are made for a few hundred tokens at a time, and the matrix of the vocabulary is taken in
// pieces, so that memory grows with neither tokens times vocabulary nor a whole matrix in F32.
class OutputHead {
 public:
  OutputHead(const ModelWeights* weights, ThreadPool* pool, Isa isa)
      : weights_(weights),
        pool_(pool),
        isa_(isa),
        kernels_(&GetElementwiseKernels(isa)),
        packed_(&weights->machine(), pool),
        norms_(weights->config()) {}

  // Draws a token at every position from softmax(logits): `uniform` [n_tokens] in [0, 1) says
  // which. stream [n_tokens, hidden_dim] becomes the gradient of the sum of their log-likelihoods
  // with respect to it. kResourceExhausted when there is no memory.
  StatusOr<DrawnTokens> Run(std::span<const double> uniform, float* stream);

 private:
  // Runs fn for every piece of the vocabulary, with the rows that are in matrix_.
  template <typename F>
  Status ForVocabulary(const F& fn);
  // logits [n, vocab_size] of n normalised rows.
  Status MakeLogits(int64_t n, const float* normed, float* logits);
  // Of [n_tokens] rows of `stream`; adds to what was drawn.
  Status RunSlice(std::span<const double> uniform, float* stream, DrawnTokens* drawn);
  // Logits become the gradient of the log-likelihood of the token that is drawn with `uniform`,
  // with respect to what the product made where the model caps them.
  int32_t Draw(double uniform, float* logits, double* log_likelihood) const;

  const ModelWeights* weights_;
  ThreadPool* pool_;
  Isa isa_;
  const ElementwiseKernels* kernels_;
  PackedProducts packed_;
  ModelNorms norms_;
  FloatMatrix matrix_;
  int64_t matrix_begin_ = -1;  // the piece that matrix_ holds; -1: none
  Buffer normed_, logits_;     // [slice of tokens, hidden_dim], [slice of tokens, vocab_size]
};

}  // namespace kvlathe

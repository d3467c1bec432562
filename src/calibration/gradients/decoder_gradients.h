// Gradients of what a decoder predicts are taken with respect to the rows that a cache would store:
// by a forward and a backward pass over a window of tokens, without a cache and without gradients
// of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/layer_pass.h"
#include "calibration/gradients/output_head.h"
#include "model/weights.h"

namespace kvlathe {

// Memory beside that of LayerPass and OutputHead: 4 bytes for each token, channel of the stream and
// layer. A window costs two forwards, one and the products of the way back, and another one of
// layers that are not kept (LayerPass). Every family that the engine runs has gradients; positions
// do not merge, also where a model decides what merges.
class DecoderGradients {
 public:
  // Called with every layer, the last one first, on the thread that runs the pass.
  using Sink = std::function<void(const RowGradients& gradients)>;

  // `weights` and `pool` outlive this; values of a layer are folded without a basis, which is free
  // while a model of the same weights is there that has none. `newest` is that of RowGradients,
  // `kept_bytes` that of LayerPass.
  DecoderGradients(ModelWeights* weights, ThreadPool* pool, Isa isa, int newest,
                   int64_t kept_bytes = kKeptLayerBytes);

  // Runs the window from position 0 on, draws from the model's own predictions what follows each of
  // its tokens, with numbers that depend on `seed` alone, and shows the gradients of the
  // log-likelihood of all that was drawn. On its way forwards it shows the rows of every layer to
  // `observer` (may be null). kInvalidArgument if the window is longer than the
  // positions that a model has learned, kResourceExhausted when there is no memory, kDataLoss if
  // weights cannot be read.
  StatusOr<DrawnTokens> Run(std::span<const int32_t> token_ids, uint64_t seed, const Sink& sink,
                            QkvObserver* observer = nullptr);

 private:
  Status CheckWindow(std::span<const int32_t> token_ids) const;
  Status Embed(std::span<const int32_t> token_ids, float* stream) const;

  ModelWeights* weights_;
  LayerPass layer_;
  OutputHead head_;
  Buffer streams_;  // [n_layers + 1, n_tokens, hidden_dim]: what goes into each layer
};

}  // namespace kvlathe

// The Llama and the GPT-2 decoder are a libtorch module for training: the same arithmetic as
// src/model, with gradients. Parameters are F32 (or F64 in gradient checks) and have the names and
// shapes of the Hugging Face format; the matrix products run in `compute_type`, the residual stream
// and the norms in F32.
#pragma once

#include <torch/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"
#include "training/retrofit/causal_attention.h"
#include "training/retrofit/dmc_recipe.h"
#include "training/retrofit/merging/merge_pass.h"

namespace kvlathe {

// RMSNorm with a gradient of its own: y = x / sqrt(mean(x^2) + eps) * w.
// x [n, hidden] and w [hidden] in the parameters' type; y in `to`.
torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& w, double eps,
                      torch::ScalarType to);

// silu(gate) * up with a gradient of its own; gate_up [n, 2 ffn] holds gate, then up.
torch::Tensor SwiGlu(const torch::Tensor& gate_up);

// GELU with a gradient of its own, exact or in its tanh approximation.
torch::Tensor Gelu(const torch::Tensor& x, bool is_tanh);

// Rotates x [batch, n_tokens, n_heads, head_dim], half layout; cos and sin [n_tokens, head_dim /
// 2].
torch::Tensor Rotate(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin);

// Negative log-likelihoods [n] in nats of `targets` [n] under logits [n, vocab].
torch::Tensor CrossEntropy(const torch::Tensor& logits, const torch::Tensor& targets);

// Divergences [n] in nats of softmax(logits) from softmax(reference), both [n, vocab]; no gradient
// goes to the reference.
torch::Tensor KlDivergence(const torch::Tensor& reference, const torch::Tensor& logits);

class Decoder;
// Makes what a variant of DMC computes what the engine computes: shared decisions become equal rows
// of W_Q and W_K, uniform weights rows of 0. The variant computes the same with them.
void FoldVariant(const DmcVariant& variant, const DmcConfig& config, Decoder* decoder);

// A Llama model with another number of KV heads, which divides theirs or is a multiple. Fewer: W_K
// and W_V are the means of the heads that become one (Ainslie et al., 2023, arXiv 2305.13245).
// More: the heads are copied, and the model computes what it did.
Decoder WithKvHeads(const Decoder& decoder, int n_kv_heads);

// The name of the first parameter with a number that is not finite; empty: all are.
std::string FirstNotFinite(const Decoder& decoder);

// The layer that a parameter belongs to; -1: none.
int LayerOf(std::string_view parameter_name);

// Whether it is one of the projections of attention, or a bias of one.
bool IsOfAttention(std::string_view parameter_name);

// The rows of W_K that decide, [n_kv_heads, hidden], of each layer of a model that has a DmcConfig.
std::vector<torch::Tensor> DecidingRows(const Decoder& decoder);

// Whether it belongs to a head of Dynamic Memory Sparsification.
bool IsOfDmsHead(std::string_view name);

// What decides in a layer which entries leave its cache (training/retrofit/dms/dms_pass.h).
struct DmsHead {
  torch::Tensor weight;  // [n_kv_heads, hidden]
  torch::Tensor bias;    // [n_kv_heads]
  torch::Tensor norm;    // [hidden], ones, never trained
};

class Decoder {
 public:
  // Weights drawn as both families do: normal with standard deviation 0.02, output projections
  // divided by sqrt(2 n_layers); norms 1, biases 0. `config` passes CheckTrainable
  // (training/retrofit/model_directory.h).
  Decoder(const ModelConfig& config, uint64_t seed, torch::ScalarType parameter_type,
          torch::Device device);

  // tokens [batch, n_tokens] int64; final hidden states [batch * n_tokens, hidden], normed. With a
  // `pass`, which is new, every layer merges as it says.
  torch::Tensor Hidden(const torch::Tensor& tokens, torch::ScalarType compute_type,
                       MergePass* pass = nullptr) const;
  // Logits [n, vocab] of hidden states [n, hidden].
  torch::Tensor Logits(const torch::Tensor& hidden) const;

  // Heads of Dynamic Memory Sparsification, of zeros, one a layer; their parameters come behind all
  // others, and weights and biases of them alone have gradients from now on. Once.
  void AddDmsHeads();
  const std::vector<DmsHead>& dms_heads() const { return dms_heads_; }

  const ModelConfig& config() const { return config_; }
  // Name (Hugging Face) and tensor, in a fixed order.
  const std::vector<std::pair<std::string, torch::Tensor>>& parameters() const {
    return parameters_;
  }
  int64_t n_parameters() const;
  torch::Device device() const { return device_; }
  // Forward and backward FLOPs of one token of a sequence of n_tokens: 6 per weight of the matrix
  // products, 4 where the weight has no gradient, and 6 n_tokens n_heads head_dim for causal
  // attention.
  double FlopsPerToken(int n_tokens) const;

 private:
  struct Norm {
    torch::Tensor weight, bias;  // no bias: RMSNorm
  };
  // y = x W^T (+ bias). The rows of W may lie in several tensors; GPT-2 stores W^T.
  struct Projection {
    std::vector<torch::Tensor> parts;
    torch::Tensor bias;  // undefined: none
  };
  struct Layer {
    Norm attn_norm, ffn_norm;
    Projection qkv, o, mlp_in, mlp_out;
  };
  class Initialiser;  // draws parameters (decoder_weights.cc)

  torch::Tensor Normalise(const torch::Tensor& x, const Norm& norm, torch::ScalarType to) const;
  torch::Tensor Multiply(const torch::Tensor& x, const Projection& projection) const;
  struct Projected {
    torch::Tensor q, k, v;  // [batch, n_tokens, heads, head_dim], q and k behind RoPE
    ColumnEffects effects;
  };
  Projected Project(const Layer& layer, const torch::Tensor& x, int64_t batch, int64_t n_tokens,
                    MergePass* pass) const;
  torch::Tensor Attend(const Layer& layer, const Projected& rows) const;

  ModelConfig config_;
  torch::Device device_;
  torch::Tensor embedding_, position_embedding_, head_;
  Norm final_norm_;
  std::vector<Layer> layers_;
  std::vector<DmsHead> dms_heads_;
  torch::Tensor cos_, sin_;  // [max_seq_len, head_dim / 2]; undefined with learned positions
  std::vector<std::pair<std::string, torch::Tensor>> parameters_;
};

}  // namespace kvlathe

// How far a model with a basis is from the uncompressed model.
#pragma once

#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "calibration/calibrate.h"
#include "kv/basis/method.h"
#include "model/model.h"

namespace kvlathe {

// The KL divergence of a model with a basis from the uncompressed model, on texts that run side by
// side. Keeps the latter's logits of the second half of each: 4 bytes per token and vocabulary
// entry. And of each kind of basis what went into the layers: 4 bytes per token, channel and layer.
class KlMeter {
 public:
  static constexpr int kAllLayers = -1;

  // kInvalidArgument unless all texts are as long as each other and have a token to score.
  static StatusOr<std::unique_ptr<KlMeter>> Create(std::shared_ptr<ModelWeights> weights,
                                                   TokenSequences texts, ThreadPool* pool, Isa isa);

  // Nats per token, the mean of all texts. Before first_layer a basis leaves rows as they are; one
  // that splits bits does not differ there from the last of its kind (after RoPE, of latents) that
  // was measured with kAllLayers. Costs a forward over the texts from there on and folding. Where
  // bits are split, what lies 64 positions behind is sealed.
  StatusOr<double> Measure(const ModelBasis& basis, int first_layer);

 private:
  // What a kind of basis is measured with.
  struct Reference {
    std::unique_ptr<Model> model;             // holds its projections for others
    std::vector<std::vector<float>> streams;  // [n_layers], of each step [n_texts, n, hidden_dim]
  };

  int64_t n_tokens() const { return std::ssize(texts_.front()); }
  int64_t n_context() const { return n_tokens() / 2; }  // not scored
  StatusOr<std::vector<float>> Logits(const ModelBasis* basis, int first_layer);

  std::shared_ptr<ModelWeights> weights_;
  TokenSequences texts_;
  ThreadPool* pool_ = nullptr;
  Isa isa_ = Isa::kScalar;
  Reference whole_;
  Reference split_[2];         // after RoPE, latents
  std::vector<float> logits_;  // of the uncompressed model: [n_texts, n_tokens - n_context, vocab]
};

}  // namespace kvlathe

// How far a model with a basis is from the uncompressed model. Where positions merge, both merge
// them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "analysis/bases/method.h"
#include "base/cpu_features.h"
#include "base/threads.h"
#include "calibration/calibrate.h"
#include "kv/retention/plan.h"
#include "model/model.h"

namespace kvlathe {

// The KL divergence of a model with a basis from a model like it without, on texts that run side by
// side. Keeps the latter's logits of what is scored: 4 bytes per token and vocabulary entry. And
// what went into its layers: 4 bytes per token, channel and layer.
class KlMeter {
 public:
  static constexpr int kAllLayers = -1;
  struct Options {
    int scored_part = 2;    // one token in so many is scored, the last of each text
    int n_whole_texts = 0;  // what splits no bits is measured on so many texts; 0: on all
    std::optional<MergePlan> merge = {};  // of both models, behind the first positions
  };

  // kInvalidArgument unless all texts are as long as each other and have a token to score.
  static StatusOr<std::unique_ptr<KlMeter>> Create(std::shared_ptr<ModelWeights> weights,
                                                   TokenSequences texts, ThreadPool* pool, Isa isa,
                                                   const Options& options);
  static StatusOr<std::unique_ptr<KlMeter>> Create(std::shared_ptr<ModelWeights> weights,
                                                   TokenSequences texts, ThreadPool* pool,
                                                   Isa isa) {
    return Create(std::move(weights), std::move(texts), pool, isa, {});
  }

  // Nats per token, the mean of all texts, from the uncompressed model; of a basis that splits bits
  // from the last of its kind (after RoPE, of latents) that was measured with kAllLayers, which
  // itself is from the uncompressed model. Two models that differ in one pair only tell more of the
  // pair than either and a third. Before first_layer the two must not differ. Costs a forward over
  // the texts from there on and folding. Where bits are split, what lies 64 positions behind is
  // sealed.
  StatusOr<double> Measure(const ModelBasis& basis, int first_layer);

 private:
  // What bases of a kind are measured from.
  struct Reference {
    std::unique_ptr<Model> model;             // holds its projections for others
    std::vector<std::vector<float>> streams;  // [n_layers], of each step [n_texts, n, hidden_dim]
    std::vector<float> logits;                // [n_texts, n_scored, vocab]
    int64_t n_texts = 0;                      // from the first
  };
  // Logits of a scored row, counted as Reference::logits does.
  using LogitsSink = std::function<void(int64_t row, std::span<const float> logits)>;

  int64_t n_tokens() const { return std::ssize(texts_.front()); }
  int64_t n_context() const { return n_tokens() - n_tokens() / options_.scored_part; }
  int64_t n_scored() const { return n_tokens() - n_context(); }
  bool SplitsBits(const ModelBasis* basis) const;
  StatusOr<std::unique_ptr<Model>> MakeModel(const ModelBasis* basis);
  // Runs the texts of the reference; from its stream into first_layer on or, where there is none,
  // from the tokens, keeping the streams. The sink is called by all workers.
  Status RunTexts(Model* model, int first_layer, Reference* reference, const LogitsSink& sink);
  Status SetReference(std::unique_ptr<Model> model, Reference* reference);

  std::shared_ptr<ModelWeights> weights_;
  TokenSequences texts_;
  ThreadPool* pool_ = nullptr;
  Isa isa_ = Isa::kScalar;
  Options options_;
  Reference whole_;
  Reference split_[2];  // after RoPE, latents
};

}  // namespace kvlathe

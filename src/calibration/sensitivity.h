// How much the model's output suffers from an error in one pair of one layer, measured.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/basis/method.h"
#include "model/model.h"

namespace kvlathe {

// The KL divergence of a model with a basis from the uncompressed model, on one text. Keeps the
// latter's logits of the second half of the text: 4 bytes per token and vocabulary entry. And of
// each kind of basis what went into the layers: 4 bytes per token, channel and layer.
class KlMeter {
 public:
  static constexpr int kAllLayers = -1;

  static StatusOr<std::unique_ptr<KlMeter>> Create(std::shared_ptr<ModelWeights> weights,
                                                   std::span<const int32_t> token_ids,
                                                   ThreadPool* pool, Isa isa);
  // Nats per token. Before first_layer a basis leaves rows as they are; one that splits bits does
  // not differ there from the last of its kind (after RoPE, of latents) that was measured with
  // kAllLayers. Costs a forward over the text from there on and folding. Where bits are split, what
  // lies 64 positions behind is sealed.
  StatusOr<double> Measure(const ModelBasis& basis, int first_layer);

 private:
  // What a kind of basis is measured with.
  struct Reference {
    std::unique_ptr<Model> model;             // holds its projections for others
    std::vector<std::vector<float>> streams;  // [n_layers][n_tokens, hidden_dim]
  };

  StatusOr<std::vector<float>> Logits(const ModelBasis* basis, int first_layer);

  std::shared_ptr<ModelWeights> weights_;
  std::vector<int32_t> token_ids_;
  ThreadPool* pool_ = nullptr;
  Isa isa_ = Isa::kScalar;
  Reference whole_;
  Reference split_[2];         // after RoPE, latents
  std::vector<float> logits_;  // of the uncompressed model
};

struct SensitivityJob {
  const BasisAnalysis* analysis = nullptr;     // lathe's
  const BasisAnalysis* before_rope = nullptr;  // with BasisOptions::keys_before_rope
  // KlMeter::Measure.
  std::function<StatusOr<double>(const ModelBasis& basis, int first_layer)> kl;
  std::function<void(double fraction)> on_progress;  // may be null
};

// At most this many probes are made, but for four a layer.
inline constexpr int kMostProbes = 168;

// What the text of the probes has at most, half of it scored.
int ProbeTokens(const StatisticsShape& shape);

// Cuts one pair of one KV head (or of a few of one layer) to each of ProbeRanks, all else whole,
// and keeps the KL in statistics->probe_kl_qk, probe_kl_v and, of keys before RoPE,
// probe_kl_qk_pre. Gives each pair codes of kProbeBits as well, beside codes of 8 bits everywhere
// else, and keeps what that costs more than 8 bits everywhere in probe_noise_qk, probe_noise_v and
// probe_noise_qk_pre. What heads lose together is shared out by the errors that the analysis
// expects. Where that is more than kMostProbes, only the middle cut and the codes of the pairs
// after RoPE are measured, of whole layers, and what they cost per expected error says the rest.
// Errors are those of `kl`.
Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics);

}  // namespace kvlathe

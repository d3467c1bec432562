// How much the model's output suffers from an error in one pair of one layer, measured.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/basis/method.h"
#include "model/weights.h"

namespace kvlathe {

// The KL divergence of a model with a basis from the uncompressed model, on one text. Keeps the
// latter's logits of the second half of the text: 4 bytes per token and vocabulary entry.
class KlMeter {
 public:
  static StatusOr<std::unique_ptr<KlMeter>> Create(std::shared_ptr<ModelWeights> weights,
                                                   std::span<const int32_t> token_ids,
                                                   ThreadPool* pool, Isa isa);
  // Nats per token. Costs a forward over the text and folding `basis`. Where the basis splits bits,
  // what lies 64 positions behind is sealed.
  StatusOr<double> Measure(const ModelBasis& basis);

 private:
  StatusOr<std::vector<float>> Logits(const ModelBasis* basis);

  std::shared_ptr<ModelWeights> weights_;
  std::vector<int32_t> token_ids_;
  ThreadPool* pool_ = nullptr;
  Isa isa_ = Isa::kScalar;
  std::vector<float> logits_;  // of the uncompressed model
};

struct SensitivityJob {
  const BasisAnalysis* analysis = nullptr;     // lathe's
  const BasisAnalysis* before_rope = nullptr;  // with BasisOptions::keys_before_rope
  std::function<StatusOr<double>(const ModelBasis& basis)> kl;
  std::function<void(double fraction)> on_progress;  // may be null
};

// At most this many cuts are measured where a layer's heads can be cut together.
inline constexpr int kMostProbes = 144;

// Cuts one pair of one KV head (or of a few of one layer) to each of ProbeRanks, all else whole,
// and keeps the KL in statistics->probe_kl_qk, probe_kl_v and, of keys before RoPE,
// probe_kl_qk_pre. Gives each pair codes of kProbeBits as well, beside codes of 8 bits everywhere
// else, and keeps what that costs more than 8 bits everywhere in probe_noise_qk, probe_noise_v and
// probe_noise_qk_pre. What heads lose together is shared out by the errors that the analysis
// expects. Errors are those of `kl`.
Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics);

}  // namespace kvlathe

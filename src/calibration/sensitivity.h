// How much the model's output suffers from an error in one pair of one layer, measured.
#pragma once

#include <functional>

#include "analysis/bases/method.h"
#include "calibration/calibrate.h"
#include "calibration/kl_meter.h"

namespace kvlathe {

struct SensitivityJob {
  const BasisAnalysis* analysis = nullptr;  // lathe's
  // With BasisOptions::keys_before_rope; null: keys from before RoPE are not measured.
  const BasisAnalysis* before_rope = nullptr;
  // KlMeter::Measure.
  std::function<StatusOr<double>(const ModelBasis& basis, int first_layer)> kl;
  std::function<void(double fraction)> on_progress;  // before every probe; may be null
};

// At most this many probes are made; where the layers of a model would take more, each has four.
inline constexpr int kMostProbes = 168;

// The texts that probes are measured on. They are equally long and start with the first token of
// their sequence. They are two texts of 1024 tokens, half of each scored; or, for shapes with more
// probes than kMostProbes, four texts of 256 tokens from as many parts of the sequences, a quarter
// of each scored, and cuts read two of them. What a layer loses differs more from text to text than
// inside a text, and for noise more so than for cuts. Where positions merge they are longer, 2048
// or 1024 tokens with half of each scored.
struct ProbeTexts {
  TokenSequences texts;
  KlMeter::Options options;
};
ProbeTexts ChooseProbeTexts(const TokenSequences& sequences, const StatisticsShape& shape,
                            bool merges = false);

// How many layers all probes of the shape run, which is about what they cost on a text. A probe
// runs the layers from the one that it changes on, and the vocabulary.
double ProbedLayers(const StatisticsShape& shape);

// Cuts one pair of one KV head (or of a few of one layer) to each of ProbeRanks, all else whole,
// and keeps the KL in statistics->probes: kl_qk, kl_v and, of keys before RoPE,
// kl_qk_pre. Gives each pair codes of kProbeBits as well, beside codes of 8 bits everywhere
// else, and keeps the KL from 8 bits everywhere in noise_qk, noise_v and
// noise_qk_pre. What heads lose together is shared out by the errors that the analysis
// expects. Where that is more than kMostProbes, only the middle cut and the codes of the pairs
// after RoPE are measured, of whole layers, and what they cost per expected error says the rest.
// Errors are those of `kl`.
Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics);

}  // namespace kvlathe

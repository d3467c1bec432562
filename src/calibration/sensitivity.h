// How much the model's output suffers from an error in one pair of one layer, measured.
#pragma once

#include <functional>

#include "analysis/bases/method.h"
#include "calibration/calibrate.h"
#include "calibration/kl_meter.h"

namespace kvlathe {

struct SensitivityJob {
  const BasisAnalysis* analysis = nullptr;     // lathe's
  const BasisAnalysis* before_rope = nullptr;  // with BasisOptions::keys_before_rope
  // KlMeter::Measure.
  std::function<StatusOr<double>(const ModelBasis& basis, int first_layer)> kl;
  std::function<void(double fraction)> on_progress;  // before every probe; may be null
};

// At most this many probes are made, but for four a layer.
inline constexpr int kMostProbes = 168;

// What probes are measured on, texts as long as each other that start with the first token of their
// sequence: the first 2048 tokens as two of 1024, half of each scored; or, of shapes of more probes
// than kMostProbes, four of 256 from as many parts of the sequences, a quarter of each scored, of
// which cuts read two. What a layer loses differs from text to text more than inside a text, noise
// more so than cuts.
struct ProbeTexts {
  TokenSequences texts;
  KlMeter::Options options;
};
ProbeTexts ChooseProbeTexts(const TokenSequences& sequences, const StatisticsShape& shape);

// How many layers all probes of the shape run, which is what they cost on a text, about: a probe
// runs the layers from the one that it changes, and the vocabulary.
double ProbedLayers(const StatisticsShape& shape);

// Cuts one pair of one KV head (or of a few of one layer) to each of ProbeRanks, all else whole,
// and keeps the KL in statistics->probe_kl_qk, probe_kl_v and, of keys before RoPE,
// probe_kl_qk_pre. Gives each pair codes of kProbeBits as well, beside codes of 8 bits everywhere
// else, and keeps the KL from 8 bits everywhere in probe_noise_qk, probe_noise_v and
// probe_noise_qk_pre. What heads lose together is shared out by the errors that the analysis
// expects. Where that is more than kMostProbes, only the middle cut and the codes of the pairs
// after RoPE are measured, of whole layers, and what they cost per expected error says the rest.
// Errors are those of `kl`.
Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics);

}  // namespace kvlathe

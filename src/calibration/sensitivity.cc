#include "calibration/sensitivity.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "analysis/bases/hadamard.h"
#include "analysis/statistics/probes.h"
#include "base/random.h"
#include "calibration/kl_meter.h"

namespace kvlathe {
namespace {

// Whole rows; with latents in the place of keys, which are whole as well.
ModelBasis WholeBasis(const StatisticsShape& shape, bool has_latents) {
  ModelBasis basis = IdentityBasis(shape.n_layers, shape.n_kv_heads, shape.head_dim);
  for (HeadBasis& head : basis.heads) {
    if (has_latents) std::swap(head.key_way_back, head.query_basis);
  }
  return basis;
}

// Whole rows but for one pair of heads [begin, end), which keep `rank` dimensions of the analysis.
ModelBasis ProbeBasis(const BasisAnalysis& analysis, Range heads, bool is_qk, int rank) {
  const StatisticsShape& shape = analysis.shape;
  ModelBasis basis = WholeBasis(shape, !analysis.heads[0].key_way_back.empty());
  std::vector<HeadRanks> ranks(analysis.heads.size(), {shape.head_dim, shape.head_dim});
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    (is_qk ? ranks[h].rank_k : ranks[h].rank_v) = rank;
  }
  ModelBasis cut = CutBasis(analysis, ranks);
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    HeadBasis& to = basis.heads[h];
    HeadBasis& from = cut.heads[h];
    if (is_qk) {
      to.rank_k = rank;
      to.query_basis = std::move(from.query_basis);
      to.key_way_back = std::move(from.key_way_back);
      to.key_basis = std::move(from.key_basis);
      to.key_offset = std::move(from.key_offset);
      to.cut = std::move(from.cut);
    } else {
      to.rank_v = rank;
      to.value_basis = std::move(from.value_basis);
      to.output_basis = std::move(from.output_basis);
      to.value_offset = std::move(from.value_offset);
    }
  }
  return basis;
}

// Codes of 8 bits but for one pair of heads [begin, end), which has kProbeBits. Keys have scales
// where they may: without them one channel that follows the position can cost a head so much that
// its KL says nothing of the others.
ModelBasis NoisyBasis(const BasisAnalysis& analysis, Range heads, bool is_qk,
                      bool is_static = false) {
  const int d = analysis.shape.head_dim;
  const auto all_with = [&](int bits) {
    BitSplit split;
    split.channels[std::ranges::find(kSplitBits, bits) - kSplitBits.begin()] = d;
    return split;
  };
  std::vector<HeadRanks> ranks(analysis.heads.size(), {d, d, all_with(8), all_with(8)});
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    (is_qk ? ranks[h].k_bits : ranks[h].v_bits) = all_with(kProbeBits);
  }
  for (size_t h = 0; h < ranks.size(); ++h) {
    const bool is_probed =
        static_cast<int64_t>(h) >= heads.begin && static_cast<int64_t>(h) < heads.end;
    if (analysis.noise[h].qk_in_blocks.empty() || (is_static && is_probed)) continue;
    ranks[h].k_bits.scaled = d;
  }
  return CutBasis(analysis, ranks);
}

// What noise is measured from: codes of 8 bits everywhere.
Status SetNoiseReference(const SensitivityJob& job, const BasisAnalysis& analysis) {
  return job.kl(NoisyBasis(analysis, {0, 0}, true), KlMeter::kAllLayers).status();
}

// Shares out what heads [begin, end) lose together by what is expected of each; to[step * head].
void ShareLoss(Range heads, double kl, const std::function<double(int64_t)>& expected_of, int step,
               float* to) {
  double expected = 0;
  for (int64_t h = heads.begin; h < heads.end; ++h) expected += expected_of(h);
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    const double share = expected > 0 ? expected_of(h) / expected
                                      : 1.0 / static_cast<double>(heads.end - heads.begin);
    to[h * step] = static_cast<float>(std::max(kl, kLeastProbeKl) * share);
  }
}

// A pair of every head, and where what it loses is kept.
struct ProbedPair {
  const BasisAnalysis* analysis;
  bool is_qk;
  float* kl;            // [n_heads, kProbeCuts]
  float* noise;         // [n_heads]
  float* static_noise;  // [n_heads]; null: of values

  const std::vector<double>& NoiseOf(int64_t h) const {
    return is_qk ? analysis->noise[h].probed_qk() : analysis->noise[h].v;
  }
  const std::vector<double>& SpectrumOf(int64_t h) const {
    return is_qk ? analysis->spectra[h].qk : analysis->spectra[h].v;
  }
};

constexpr int kPairs = 3;  // after RoPE, values, keys before RoPE
// Cuts, noise, and noise of keys without scales.
constexpr int kNoiseProbe = kProbeCuts, kStaticProbe = kProbeCuts + 1;
constexpr int kKinds = kPairs * (kProbeCuts + 1) + 2;

// A deep model is a large one, whose probes take long: it gets fewer of them.
bool MeasuresEach(const StatisticsShape& shape) { return kKinds * shape.n_layers <= kMostProbes; }
constexpr int kLayerProbes = 4;  // of a deep model: a cut and noise of both pairs after RoPE

// One pair of some heads of a layer, by a cut or by noise.
struct Probe {
  Range heads;
  int pair;
  int cut;  // or kNoiseProbe, kStaticProbe
};

// Heads of a layer are probed in so many parts: as many as kMostProbes allows.
int PartsOf(const StatisticsShape& shape) {
  return std::clamp(kMostProbes / (kKinds * shape.n_layers), 1, shape.n_kv_heads);
}

std::vector<Probe> ListProbes(const StatisticsShape& shape) {
  const int n_parts = PartsOf(shape);
  std::vector<Probe> probes;
  for (int l = 0; l < shape.n_layers; ++l) {
    for (int part = 0; part < n_parts; ++part) {
      Range heads = ShareOf(shape.n_kv_heads, 1, part, n_parts);
      heads = {heads.begin + int64_t{l} * shape.n_kv_heads,
               heads.end + int64_t{l} * shape.n_kv_heads};
      for (int kind = 0; kind < kKinds; ++kind) {
        const Probe probe = {heads, kind % kPairs, kind / kPairs};
        if (probe.cut == kStaticProbe) break;
        probes.push_back(probe);
      }
      for (const int pair : {0, 2}) probes.push_back({heads, pair, kStaticProbe});
    }
  }
  return probes;
}

double SumOf(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

double NoiseOf(const ProbedPair& pair, int64_t head_idx) { return SumOf(pair.NoiseOf(head_idx)); }

double CutError(const ProbedPair& pair, int64_t head_idx, int rank) {
  const std::vector<double>& spectrum = pair.SpectrumOf(head_idx);
  return SumOfSquares(spectrum, rank, static_cast<int>(spectrum.size()));
}

// What a probe of the layer costs, in layers; the vocabulary is counted as some of them.
double WorkOf(const StatisticsShape& shape, int layer_idx) {
  return shape.n_layers - layer_idx + 0.25 * shape.n_layers;
}

// The KL of one probe after the other, with the share of all that is done.
class ProbeRun {
 public:
  ProbeRun(const SensitivityJob& job, const StatisticsShape& shape)
      : job_(job), shape_(shape), all_(ProbedLayers(shape)) {}
  StatusOr<double> Kl(const ModelBasis& basis, int layer_idx) {
    if (job_.on_progress) job_.on_progress(done_ / all_);
    done_ += WorkOf(shape_, layer_idx);
    return job_.kl(basis, layer_idx);
  }

 private:
  const SensitivityJob& job_;
  const StatisticsShape& shape_;
  double all_, done_ = 0;
};

// Every kind of probe of every layer.
Status MeasureEach(const SensitivityJob& job, const StatisticsShape& shape,
                   std::span<ProbedPair> pairs) {
  const std::vector<int> ranks = ProbeRanks(shape.head_dim);
  KVL_RETURN_IF_ERROR(SetNoiseReference(job, *job.analysis));
  if (job.before_rope != nullptr) {
    KVL_RETURN_IF_ERROR(SetNoiseReference(job, *job.before_rope));
  }
  ProbeRun run(job, shape);
  for (const auto& [heads, pair_idx, cut] : ListProbes(shape)) {
    if (pair_idx >= std::ssize(pairs)) continue;
    const ProbedPair& pair = pairs[pair_idx];
    const auto layer = static_cast<int>(heads.begin / shape.n_kv_heads);
    if (cut >= kNoiseProbe) {
      const bool is_static = cut == kStaticProbe;
      KVL_ASSIGN_OR_RETURN(const double kl,
                           run.Kl(NoisyBasis(*pair.analysis, heads, pair.is_qk, is_static), layer));
      const auto noise_of = [&](int64_t h) {
        return is_static ? SumOf(pair.analysis->noise[h].qk) : NoiseOf(pair, h);
      };
      ShareLoss(heads, kl, noise_of, 1, is_static ? pair.static_noise : pair.noise);
      continue;
    }
    KVL_ASSIGN_OR_RETURN(const double kl,
                         run.Kl(ProbeBasis(*pair.analysis, heads, pair.is_qk, ranks[cut]), layer));
    const auto error_of = [&, cut = cut](int64_t h) { return CutError(pair, h, ranks[cut]); };
    ShareLoss(heads, kl, error_of, kProbeCuts, pair.kl + cut);
  }
  return OkStatus();
}

// What a squared error costs in a layer, of a cut and of noise: noise differs from position to
// position, so attention averages it out.
struct KlPerError {
  double cut = 0, noise = 0;
};

// What heads are expected to lose by every cut and by noise.
void ExpectLosses(const ProbedPair& pair, Range heads, const std::vector<int>& ranks,
                  const KlPerError& kl) {
  const auto loss = [](double x) { return static_cast<float>(std::max(x, kLeastProbeKl)); };
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    for (int cut = 0; cut < kProbeCuts; ++cut) {
      pair.kl[h * kProbeCuts + cut] = loss(kl.cut * CutError(pair, h, ranks[cut]));
    }
    pair.noise[h] = loss(kl.noise * NoiseOf(pair, h));
  }
}

// One cut and the noise of each pair after RoPE in a whole layer; the errors that are expected say
// the rest, of keys before RoPE as well: an error of a product costs the same wherever it comes
// from.
Status MeasureLayers(const SensitivityJob& job, const StatisticsShape& shape,
                     std::span<const ProbedPair> pairs) {
  const std::vector<int> ranks = ProbeRanks(shape.head_dim);
  const int rank = ranks[kProbeCuts / 2];
  KVL_RETURN_IF_ERROR(SetNoiseReference(job, *job.analysis));
  ProbeRun run(job, shape);
  for (int l = 0; l < shape.n_layers; ++l) {
    const Range heads = {int64_t{l} * shape.n_kv_heads, int64_t{l + 1} * shape.n_kv_heads};
    for (const bool is_qk : {true, false}) {
      const ProbedPair& measured = *std::ranges::find(pairs, is_qk, &ProbedPair::is_qk);
      KVL_ASSIGN_OR_RETURN(const double cut,
                           run.Kl(ProbeBasis(*measured.analysis, heads, is_qk, rank), l));
      KVL_ASSIGN_OR_RETURN(const double noise,
                           run.Kl(NoisyBasis(*measured.analysis, heads, is_qk), l));
      double cut_error = 0, noise_error = 0;
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        cut_error += CutError(measured, h, rank);
        noise_error += NoiseOf(measured, h);
      }
      const KlPerError kl = {cut_error > 0 ? cut / cut_error : 0,
                             noise_error > 0 ? noise / noise_error : 0};
      for (const ProbedPair& pair : pairs) {
        if (pair.is_qk == is_qk) ExpectLosses(pair, heads, ranks, kl);
      }
    }
  }
  return OkStatus();
}

// The tokens of a sequence from `from` on, behind its first.
std::vector<int32_t> TextAt(const std::vector<int32_t>& ids, int64_t from, int64_t n_tokens) {
  std::vector<int32_t> text(ids.begin() + from, ids.begin() + from + n_tokens);
  text.front() = ids.front();
  return text;
}

TokenSequences FirstTexts(const TokenSequences& sequences, size_t most, int64_t n_tokens) {
  n_tokens = std::min(n_tokens, std::ssize(sequences.front()));
  TokenSequences texts;
  for (const std::vector<int32_t>& ids : sequences) {
    for (int64_t from = 0; std::ssize(ids) - from >= n_tokens && texts.size() < most;
         from += n_tokens) {
      texts.push_back(TextAt(ids, from, n_tokens));
    }
  }
  return texts;
}

// One text at random from each of `most` equal parts of all tokens, fewer of a short text: those of
// every other part first, so that a few stand for all.
TokenSequences SpreadTexts(const TokenSequences& sequences, int64_t most, int64_t n_tokens) {
  n_tokens = std::min(n_tokens, std::ssize(sequences.front()));
  int64_t n_all = 0;
  for (const std::vector<int32_t>& ids : sequences) n_all += std::ssize(ids);
  const int64_t n_texts = std::clamp<int64_t>(n_all / n_tokens, 1, most);
  TokenSequences texts;
  Random random(0);
  for (int64_t i = 0; i < n_texts; ++i) {
    const double part = static_cast<double>(n_all) / static_cast<double>(n_texts);
    const int64_t n_even = (n_texts + 1) / 2, place = i < n_even ? 2 * i : 2 * (i - n_even) + 1;
    auto from = static_cast<int64_t>((static_cast<double>(place) + random.Uniform()) * part);
    size_t s = 0;
    while (from >= std::ssize(sequences[s])) from -= std::ssize(sequences[s++]);
    if (std::ssize(sequences[s]) < n_tokens) --s;  // only the last is shorter than the first
    texts.push_back(
        TextAt(sequences[s], std::min(from, std::ssize(sequences[s]) - n_tokens), n_tokens));
  }
  return texts;
}

}  // namespace

ProbeTexts ChooseProbeTexts(const TokenSequences& sequences, const StatisticsShape& shape,
                            bool merges) {
  // Entries of several positions are sealed by 64 of them, too.
  if (merges && MeasuresEach(shape)) return {FirstTexts(sequences, 2, 2048), {}};
  if (merges) return {SpreadTexts(sequences, 4, 1024), {.n_whole_texts = 2}};
  if (MeasuresEach(shape)) return {FirstTexts(sequences, 2, 1024), {}};
  return {SpreadTexts(sequences, 4, 256), {.scored_part = 4, .n_whole_texts = 2}};
}

double ProbedLayers(const StatisticsShape& shape) {
  double n_layers = 0;
  const int n_parts = MeasuresEach(shape) ? PartsOf(shape) : 1;
  const int of_layer = MeasuresEach(shape) ? kKinds * n_parts : kLayerProbes;
  for (int l = 0; l < shape.n_layers; ++l) n_layers += of_layer * WorkOf(shape, l);
  return n_layers;
}

Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics) {
  CalibrationStatistics& s = *statistics;
  ProbedPair pairs[kPairs] = {
      {job.analysis, true, s.probes.kl_qk.data(), s.probes.noise_qk.data(),
       s.probes.noise_qk_static.data()},
      {job.analysis, false, s.probes.kl_v.data(), s.probes.noise_v.data(), nullptr},
      {job.before_rope, true, s.probes.kl_qk_pre.data(), s.probes.noise_qk_pre.data(),
       s.probes.noise_qk_pre_static.data()}};
  const auto probed = std::span(pairs).first(job.before_rope != nullptr ? kPairs : kPairs - 1);
  return MeasuresEach(s.shape) ? MeasureEach(job, s.shape, probed)
                               : MeasureLayers(job, s.shape, probed);
}

}  // namespace kvlathe

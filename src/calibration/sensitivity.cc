#include "calibration/sensitivity.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "calibration/kl_meter.h"
#include "kv/basis/hadamard.h"
#include "kv/basis/probes.h"

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
  float* kl;             // [n_heads, kProbeCuts]
  float* noise;          // [n_heads]
  float* static_noise;   // [n_heads]; null: of values
  double of_8_bits = 0;  // KL of 8 bits everywhere

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

// One pair of some heads of a layer, by a cut or by noise.
struct Probe {
  Range heads;
  int pair;
  int cut;  // or kNoiseProbe, kStaticProbe
};

// Of every layer, by parts of its heads as small as kMostProbes allows.
std::vector<Probe> ListProbes(const StatisticsShape& shape) {
  const int n_parts = std::clamp(kMostProbes / (kKinds * shape.n_layers), 1, shape.n_kv_heads);
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

// Every kind of probe of every layer.
Status MeasureEach(const SensitivityJob& job, const StatisticsShape& shape,
                   std::span<ProbedPair> pairs) {
  const std::vector<int> ranks = ProbeRanks(shape.head_dim);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool is_known = i > 0 && pairs[i].analysis == pairs[i - 1].analysis;
    if (is_known) {
      pairs[i].of_8_bits = pairs[i - 1].of_8_bits;
    } else {
      KVL_ASSIGN_OR_RETURN(pairs[i].of_8_bits, job.kl(NoisyBasis(*pairs[i].analysis, {0, 0}, true),
                                                      KlMeter::kAllLayers));
    }
  }
  const std::vector<Probe> probes = ListProbes(shape);
  for (size_t i = 0; i < probes.size(); ++i) {
    const auto& [heads, pair_idx, cut] = probes[i];
    const ProbedPair& pair = pairs[pair_idx];
    const auto layer = static_cast<int>(heads.begin / shape.n_kv_heads);
    if (job.on_progress) {
      job.on_progress(static_cast<double>(i) / static_cast<double>(probes.size()));
    }
    if (cut >= kNoiseProbe) {
      const bool is_static = cut == kStaticProbe;
      KVL_ASSIGN_OR_RETURN(const double kl,
                           job.kl(NoisyBasis(*pair.analysis, heads, pair.is_qk, is_static), layer));
      const auto noise_of = [&](int64_t h) {
        return is_static ? SumOf(pair.analysis->noise[h].qk) : NoiseOf(pair, h);
      };
      ShareLoss(heads, kl - pair.of_8_bits, noise_of, 1,
                is_static ? pair.static_noise : pair.noise);
      continue;
    }
    KVL_ASSIGN_OR_RETURN(const double kl,
                         job.kl(ProbeBasis(*pair.analysis, heads, pair.is_qk, ranks[cut]), layer));
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
  KVL_ASSIGN_OR_RETURN(const double of_8_bits,
                       job.kl(NoisyBasis(*job.analysis, {0, 0}, true), KlMeter::kAllLayers));
  for (int l = 0; l < shape.n_layers; ++l) {
    const Range heads = {int64_t{l} * shape.n_kv_heads, int64_t{l + 1} * shape.n_kv_heads};
    for (const bool is_qk : {true, false}) {
      if (job.on_progress) job.on_progress((l + (is_qk ? 0 : 0.5)) / shape.n_layers);
      const ProbedPair& measured = *std::ranges::find(pairs, is_qk, &ProbedPair::is_qk);
      KVL_ASSIGN_OR_RETURN(const double cut,
                           job.kl(ProbeBasis(*measured.analysis, heads, is_qk, rank), l));
      KVL_ASSIGN_OR_RETURN(const double noise,
                           job.kl(NoisyBasis(*measured.analysis, heads, is_qk), l));
      double cut_error = 0, noise_error = 0;
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        cut_error += CutError(measured, h, rank);
        noise_error += NoiseOf(measured, h);
      }
      const KlPerError kl = {cut_error > 0 ? cut / cut_error : 0,
                             noise_error > 0 ? (noise - of_8_bits) / noise_error : 0};
      for (const ProbedPair& pair : pairs) {
        if (pair.is_qk == is_qk) ExpectLosses(pair, heads, ranks, kl);
      }
    }
  }
  return OkStatus();
}

}  // namespace

TokenSequences ProbeTexts(const TokenSequences& sequences, const StatisticsShape& shape) {
  const size_t most = MeasuresEach(shape) ? 2 : 1;
  const auto n_tokens = std::min<int64_t>(std::ssize(sequences.front()), most == 2 ? 1024 : 256);
  TokenSequences texts;
  for (const std::vector<int32_t>& ids : sequences) {
    for (auto from = ids.begin(); ids.end() - from >= n_tokens && texts.size() < most;
         from += n_tokens) {
      texts.emplace_back(from, from + n_tokens).front() = ids.front();
    }
  }
  return texts;
}

Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics) {
  CalibrationStatistics& s = *statistics;
  ProbedPair pairs[kPairs] = {
      {job.analysis, true, s.probe_kl_qk.data(), s.probe_noise_qk.data(),
       s.probe_noise_qk_static.data()},
      {job.analysis, false, s.probe_kl_v.data(), s.probe_noise_v.data(), nullptr},
      {job.before_rope, true, s.probe_kl_qk_pre.data(), s.probe_noise_qk_pre.data(),
       s.probe_noise_qk_pre_static.data()}};
  return MeasuresEach(s.shape) ? MeasureEach(job, s.shape, pairs)
                               : MeasureLayers(job, s.shape, pairs);
}

}  // namespace kvlathe

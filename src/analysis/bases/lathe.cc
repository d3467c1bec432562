#include "analysis/bases/lathe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/bases/hadamard.h"
#include "analysis/bases/optimal_pair.h"
#include "analysis/bases/rotation.h"
#include "analysis/ranks/bit_ladder.h"
#include "analysis/statistics/gram.h"
#include "analysis/statistics/probes.h"
#include "base/check.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

// Keys that draw attention lie further out than most, and their errors cost most: codes reach as
// much further. Between 1 and 1.2 the KL of lathe-nano and lathe-small is nearly flat.
constexpr float kKeyReach = 1.1f;

std::vector<float> MeanOf(const HeadMoments& moments, int64_t head_idx, int dim) {
  const auto first = moments.mean.begin() + head_idx * dim;
  return {first, first + dim};
}

std::vector<double> SquareOf(const std::vector<float>& grams, int64_t head_idx, int dim) {
  const auto first = grams.begin() + head_idx * dim * dim;
  return {first, first + int64_t{dim} * dim};
}

// sqrt(e^T gram e) of every column e of the square map, mixed as it is stored. Channels without any
// variance get the smallest deviation that others can be told from.
std::vector<float> DeviationsOf(const std::vector<double>& gram, const std::vector<double>& plain,
                                int dim) {
  constexpr double kLeast = 1e-6;  // of the largest
  std::vector<float> map = ToFloats(plain);
  MixColumns(kBitGroup, &map);
  std::vector<double> deviations;
  for (int column = 0; column < dim; ++column) {
    double square = 0;
    for (int i = 0; i < dim; ++i) {
      double sum = 0;
      for (int j = 0; j < dim; ++j) sum += gram[i * dim + j] * double{map[j * dim + column]};
      square += sum * double{map[i * dim + column]};
    }
    deviations.push_back(std::sqrt(std::max(square, 0.0)));
  }
  const double largest = *std::max_element(deviations.begin(), deviations.end());
  for (double& x : deviations) x = largest > 0 ? std::max(x, kLeast * largest) : 1;
  return ToFloats(deviations);
}

// The squared error of products when mixed column i of one side is off by its deviation. The other
// side has the Gram matrix diag(s), and mixed the mean of a group of s in each of its columns.
std::vector<double> NoiseOf(const std::vector<float>& deviations, const std::vector<double>& s) {
  std::vector<double> noise;
  for (size_t i = 0; i < s.size(); ++i) {
    const auto group = s.begin() + static_cast<int64_t>(i / kBitGroup * kBitGroup);
    const double square = std::accumulate(group, group + kBitGroup, 0.0) / kBitGroup;
    noise.push_back(double{deviations[i]} * deviations[i] * square);
  }
  return noise;
}

// Noise in units of what codes of kProbeBits cost, where that was measured.
void ScaleToProbe(double measured_kl, double probed, std::vector<double>* noise) {
  if (!(measured_kl > 0 && probed > 0)) return;
  for (double& x : *noise) x *= measured_kl / UnitLoss(kProbeBits) / probed;
}

double SumOf(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

// What codes of kProbeBits cost as KL, with scales in each block and without; 0: not measured.
struct KeyProbes {
  double scaled, without_scales;
  bool are_known() const { return scaled > 0 && without_scales > 0; }
};

// Errors that a whole block has in common cost less than independent ones, for softmax ignores what
// all scores of a query share: this share where it was not measured.
constexpr double kCommonShare = 0.3;
// Open rows of 8 bits are coarse where keys move far from block to block. Where they lose more than
// codes of so many bits with scales, rows stay as they are.
constexpr int kOpenBits = 4;

// Noise of keys without scales: what they have inside a block, and of what lies between blocks the
// share that the two probes say. `inside` may be 0 in no channel.
std::vector<double> StaticNoise(const std::vector<double>& all, const std::vector<double>& inside,
                                const KeyProbes& kl) {
  std::vector<double> noise, between;
  for (size_t i = 0; i < all.size(); ++i) {
    noise.push_back(std::min(all[i], kKeyReach * kKeyReach * inside[i]));
    between.push_back(all[i] - noise[i]);
  }
  double share = kCommonShare;
  if (kl.are_known() && SumOf(between) > 0) {
    const double measured = kl.without_scales / kl.scaled * SumOf(inside);
    share = std::clamp((measured - SumOf(noise)) / SumOf(between), 0.0, 1.0);
    const double factor = std::min(1.0, measured / SumOf(noise));
    for (double& x : noise) x *= factor;
  }
  for (size_t i = 0; i < all.size(); ++i) noise[i] += share * between[i];
  return noise;
}

// Noise of keys without and with scales in each block; `in_blocks` is the Gram matrix of keys
// there, of trace 0 where calibration saw no whole block.
HeadNoise KeyNoiseOf(const HeadAnalysis& head, const std::vector<double>& in_blocks,
                     const OptimalPair& qk, const KeyProbes& kl, int dim) {
  HeadNoise noise;
  noise.qk = NoiseOf(head.key_deviations, qk.singular_values);
  if (TraceOf(in_blocks, dim) > 0) {
    noise.qk_in_blocks = NoiseOf(DeviationsOf(in_blocks, qk.right, dim), qk.singular_values);
    noise.needs_whole_rows =
        SumOf(noise.qk) * UnitLoss(8) > SumOf(noise.qk_in_blocks) * UnitLoss(kOpenBits);
    noise.qk = StaticNoise(noise.qk, noise.qk_in_blocks, kl);
    noise.scale_gain = kl.are_known() ? kl.without_scales / kl.scaled
                                      : SumOf(noise.qk) / SumOf(noise.qk_in_blocks);
  }
  if (kl.are_known() && noise.scale_gain < kLeastScaleGain) {  // gets none: see bit_ladder.h
    noise.qk = NoiseOf(head.key_deviations, qk.singular_values);
    ScaleToProbe(kl.without_scales, SumOf(noise.qk), &noise.qk);
    noise.qk_in_blocks.clear();
    return noise;
  }
  const double probed = SumOf(noise.probed_qk());
  ScaleToProbe(kl.scaled, probed, &noise.qk);
  ScaleToProbe(kl.scaled, probed, &noise.qk_in_blocks);
  return noise;
}

// What the analysis of a head reads, of keys after RoPE or before it.
struct LatheStatistics {
  const HeadMoments& q_moments;
  const HeadMoments& k_moments;
  const std::vector<float>& probe_kl_qk;
  const std::vector<float>& probe_noise_qk;
  const std::vector<float>& probe_static;
  const std::vector<float>& in_blocks;
  const std::vector<int> probe_ranks;
};

LatheStatistics StatisticsOf(const CalibrationStatistics& s, bool is_latent) {
  std::vector<int> probe_ranks = ProbeRanks(s.shape.head_dim);
  if (is_latent) {
    return {s.attended_q_pre,
            s.attended_k_pre,
            s.probes.kl_qk_pre,
            s.probes.noise_qk_pre,
            s.probes.noise_qk_pre_static,
            s.k_pre_in_blocks,
            std::move(probe_ranks)};
  }
  return {s.attended_q,
          s.attended_k,
          s.probes.kl_qk,
          s.probes.noise_qk,
          s.probes.noise_qk_static,
          s.k_in_blocks,
          std::move(probe_ranks)};
}

// The part of KV head h, [n_layers * n_kv_heads], in an analysis that has places for all heads.
Status AnalyseHead(const BasisInputs& inputs, const LatheStatistics& of_keys, int64_t h,
                   BasisAnalysis* analysis) {
  const CalibrationStatistics& s = *inputs.statistics;
  const int d = s.shape.head_dim;
  const bool is_centred = inputs.options.is_centred;
  const auto gram_of = is_centred ? CentredGramOf : GramOf;
  const std::vector<double> queries = GramOf(of_keys.q_moments, h, d);
  const std::vector<double> keys = gram_of(of_keys.k_moments, h, d);
  const std::vector<double> values = gram_of(s.attended_v, h, d);
  const std::vector<double>& outputs = inputs.output_grams[h];
  KVL_RETURN_IF_ERROR(CheckFinite(
      s.shape, h, {WeightedSum(1, queries, 1, keys), WeightedSum(1, values, 1, outputs)}));
  const OptimalPair qk = DecomposePair(queries, keys, d);
  const OptimalPair v = DecomposePair(values, outputs, d);
  HeadAnalysis& head = analysis->heads[h];
  if (inputs.options.keys_before_rope) {
    head.key_way_back = TransposedSquare(ToFloats(qk.left), d);
  } else {
    head.query_basis = ToFloats(qk.left);
  }
  head.key_basis = ToFloats(qk.right);
  head.value_basis = ToFloats(v.left);
  head.output_basis = TransposedSquare(ToFloats(v.right), d);
  if (is_centred) {
    head.key_offset = MeanOf(of_keys.k_moments, h, d);
    head.value_offset = MeanOf(s.attended_v, h, d);
  }
  head.key_deviations = DeviationsOf(keys, qk.right, d);
  for (float& x : head.key_deviations) x *= kKeyReach;
  head.value_deviations = DeviationsOf(GramAbout(s.v, h, head.value_offset, d), v.left, d);
  const std::vector<int>& probe_ranks = of_keys.probe_ranks;
  analysis->spectra[h] = {
      ScaledToProbes(qk.singular_values, probe_ranks, &of_keys.probe_kl_qk[h * kProbeCuts]),
      ScaledToProbes(v.singular_values, probe_ranks, &s.probes.kl_v[h * kProbeCuts])};
  HeadNoise& noise = analysis->noise[h];
  noise = KeyNoiseOf(head, SquareOf(of_keys.in_blocks, h, d), qk,
                     {of_keys.probe_noise_qk[h], of_keys.probe_static[h]}, d);
  if (!inputs.options.scales_keys) noise.qk_in_blocks.clear();
  noise.needs_whole_rows &= inputs.options.may_keep_open_rows;
  noise.v = NoiseOf(head.value_deviations, v.singular_values);
  ScaleToProbe(s.probes.noise_v[h], SumOf(noise.v), &noise.v);
  return OkStatus();
}

}  // namespace

StatusOr<BasisAnalysis> AnalyseLathe(const BasisInputs& inputs) {
  const StatisticsShape& shape = inputs.statistics->shape;
  const int64_t n_heads = int64_t{shape.n_layers} * shape.n_kv_heads;
  KVL_CHECK_EQ(std::ssize(inputs.output_grams), n_heads);
  const LatheStatistics of_keys = StatisticsOf(*inputs.statistics, inputs.options.keys_before_rope);
  BasisAnalysis analysis;
  analysis.shape = shape;
  analysis.heads.resize(n_heads);
  analysis.spectra.resize(n_heads);
  analysis.noise.resize(n_heads);
  std::vector<Status> statuses(n_heads);
  const auto analyse = [&](Range heads) {
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      statuses[h] = AnalyseHead(inputs, of_keys, h, &analysis);
    }
  };
  if (inputs.pool == nullptr) {
    analyse({0, n_heads});
  } else {
    inputs.pool->Run(
        [&](int worker_id) { analyse(ShareOf(n_heads, 1, worker_id, inputs.pool->n_workers())); });
  }
  for (const Status& status : statuses) KVL_RETURN_IF_ERROR(status);
  return analysis;
}

StatusOr<RankAllocation> AllocateLathe(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request, RankRule::kLeastError);
}

StatusOr<RankAllocation> AllocateLatheBits(const BasisAnalysis& analysis,
                                           const RankRequest& request) {
  return AllocateBits(analysis.spectra, analysis.noise, analysis.shape.head_dim, request);
}

}  // namespace kvlathe

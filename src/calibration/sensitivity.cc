#include "calibration/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kv/basis/hadamard.h"
#include "kv/basis/probes.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/seal_schedule.h"
#include "model/model.h"

namespace kvlathe {
namespace {

// Bytes for the cache of one short text: far more than any shape takes.
constexpr int64_t kCacheBytes = int64_t{16} << 30;

double LogOfSum(std::span<const float> logits, float max) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - max);
  return max + std::log(sum);
}

double KlOfRow(std::span<const float> from, std::span<const float> to) {
  const double from_norm = LogOfSum(from, *std::max_element(from.begin(), from.end()));
  const double to_norm = LogOfSum(to, *std::max_element(to.begin(), to.end()));
  double kl = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const double log_p = from[i] - from_norm;
    kl += std::exp(log_p) * (log_p - (to[i] - to_norm));
  }
  return kl;
}

}  // namespace

StatusOr<std::unique_ptr<KlMeter>> KlMeter::Create(std::shared_ptr<ModelWeights> weights,
                                                   std::span<const int32_t> token_ids,
                                                   ThreadPool* pool, Isa isa) {
  std::unique_ptr<KlMeter> meter(new KlMeter);
  meter->weights_ = std::move(weights);
  meter->token_ids_.assign(token_ids.begin(), token_ids.end());
  meter->pool_ = pool;
  meter->isa_ = isa;
  KVL_ASSIGN_OR_RETURN(meter->logits_, meter->Logits(nullptr));
  return meter;
}

StatusOr<std::vector<float>> KlMeter::Logits(const ModelBasis* basis) {
  SealPlan seal;
  seal.format.splits_bits = basis != nullptr && basis->heads[0].k_bits != BitSplit{};
  seal.prompt_run = kBlockSize;
  KVL_ASSIGN_OR_RETURN(const auto model,
                       Model::Create(weights_, basis, kCalibrationSinks, pool_, isa_,
                                     seal.format.splits_bits ? &seal : nullptr));
  BlockPool blocks(kCacheBytes);
  SequenceCache cache(&model->layout(), &blocks);
  const auto n_tokens = static_cast<int64_t>(token_ids_.size()), n_context = n_tokens / 2;
  cache.set_n_prompt(n_tokens);
  std::vector<float> logits;
  logits.reserve((n_tokens - n_context) * weights_->config().vocab_size);
  for (int64_t begin = 0; begin < n_tokens;) {
    const bool is_scored = begin >= n_context;
    const int64_t end =
        std::min(NextSealPoint(model->layout(), begin, n_tokens), is_scored ? n_tokens : n_context);
    const SequenceStep step{&cache, std::span(token_ids_).subspan(begin, end - begin),
                            is_scored ? SequenceStep::Logits::kAll : SequenceStep::Logits::kNone};
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(end - begin)));
    KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
    for (int64_t i = 0; is_scored && i < model->n_logit_rows(); ++i) {
      const std::span<const float> row = model->logits(i);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    begin = end;
  }
  return logits;
}

StatusOr<double> KlMeter::Measure(const ModelBasis& basis) {
  KVL_ASSIGN_OR_RETURN(const std::vector<float> logits, Logits(&basis));
  const size_t n_vocab = weights_->config().vocab_size, n_rows = logits.size() / n_vocab;
  std::vector<double> kl(n_rows);
  pool_->Run([&](int worker_id) {
    const Range rows = ShareOf(static_cast<int64_t>(n_rows), 1, worker_id, pool_->n_workers());
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      kl[i] = KlOfRow(std::span(logits_).subspan(i * n_vocab, n_vocab),
                      std::span(logits).subspan(i * n_vocab, n_vocab));
    }
  });
  double sum = 0;
  for (const double x : kl) sum += x;
  return sum / static_cast<double>(n_rows);
}

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

// Codes of 8 bits but for one pair of heads [begin, end), which has kProbeBits.
ModelBasis NoisyBasis(const BasisAnalysis& analysis, Range heads, bool is_qk) {
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
  double of_8_bits = 0;  // KL of 8 bits everywhere

  const std::vector<double>& NoiseOf(int64_t h) const {
    return is_qk ? analysis->noise[h].qk : analysis->noise[h].v;
  }
  const std::vector<double>& SpectrumOf(int64_t h) const {
    return is_qk ? analysis->spectra[h].qk : analysis->spectra[h].v;
  }
};

// One pair of some heads of a layer, by a cut or by noise.
struct Probe {
  Range heads;
  int pair;
  int cut;  // kProbeCuts: noise
};

std::vector<Probe> ListProbes(const StatisticsShape& shape, int n_pairs) {
  const int n_kinds = n_pairs * (kProbeCuts + 1);
  const int n_parts = std::clamp(kMostProbes / (n_kinds * shape.n_layers), 1, shape.n_kv_heads);
  std::vector<Probe> probes;
  for (int l = 0; l < shape.n_layers; ++l) {
    for (int part = 0; part < n_parts; ++part) {
      Range heads = ShareOf(shape.n_kv_heads, 1, part, n_parts);
      heads = {heads.begin + int64_t{l} * shape.n_kv_heads,
               heads.end + int64_t{l} * shape.n_kv_heads};
      for (int kind = 0; kind < n_kinds; ++kind) {
        probes.push_back({heads, kind % n_pairs, kind / n_pairs});
      }
    }
  }
  return probes;
}

}  // namespace

Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics) {
  CalibrationStatistics& s = *statistics;
  ProbedPair pairs[] = {
      {job.analysis, true, s.probe_kl_qk.data(), s.probe_noise_qk.data()},
      {job.analysis, false, s.probe_kl_v.data(), s.probe_noise_v.data()},
      {job.before_rope, true, s.probe_kl_qk_pre.data(), s.probe_noise_qk_pre.data()}};
  const int head_dim = s.shape.head_dim;
  const std::vector<int> ranks = ProbeRanks(head_dim);
  KVL_ASSIGN_OR_RETURN(pairs[0].of_8_bits, job.kl(NoisyBasis(*job.analysis, {0, 0}, true)));
  pairs[1].of_8_bits = pairs[0].of_8_bits;
  KVL_ASSIGN_OR_RETURN(pairs[2].of_8_bits, job.kl(NoisyBasis(*job.before_rope, {0, 0}, true)));
  const std::vector<Probe> probes = ListProbes(s.shape, std::size(pairs));
  for (size_t i = 0; i < probes.size(); ++i) {
    const auto& [heads, pair_idx, cut] = probes[i];
    const ProbedPair& pair = pairs[pair_idx];
    if (job.on_progress) {
      job.on_progress(static_cast<double>(i) / static_cast<double>(probes.size()));
    }
    if (cut == kProbeCuts) {
      KVL_ASSIGN_OR_RETURN(const double kl, job.kl(NoisyBasis(*pair.analysis, heads, pair.is_qk)));
      const auto noise_of = [&](int64_t h) {
        const std::vector<double>& noise = pair.NoiseOf(h);
        return std::accumulate(noise.begin(), noise.end(), 0.0);
      };
      ShareLoss(heads, kl - pair.of_8_bits, noise_of, 1, pair.noise);
      continue;
    }
    KVL_ASSIGN_OR_RETURN(const double kl,
                         job.kl(ProbeBasis(*pair.analysis, heads, pair.is_qk, ranks[cut])));
    const auto error_of = [&, cut = cut](int64_t h) {
      return SumOfSquares(pair.SpectrumOf(h), ranks[cut], head_dim);
    };
    ShareLoss(heads, kl, error_of, kProbeCuts, pair.kl + cut);
  }
  return OkStatus();
}

}  // namespace kvlathe

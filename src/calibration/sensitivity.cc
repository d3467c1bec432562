#include "calibration/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kv/basis/hadamard.h"
#include "kv/basis/probes.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
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
  KVL_ASSIGN_OR_RETURN(const auto model,
                       Model::Create(weights_, basis, kCalibrationSinks, pool_, isa_));
  BlockPool blocks(kCacheBytes);
  SequenceCache cache(&model->layout(), &blocks);
  const size_t n_context = token_ids_.size() / 2;
  for (const bool is_scored : {false, true}) {
    const auto ids = is_scored ? std::span(token_ids_).subspan(n_context)
                               : std::span(token_ids_).first(n_context);
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(ids.size())));
    const SequenceStep step{&cache, ids,
                            is_scored ? SequenceStep::Logits::kAll : SequenceStep::Logits::kNone};
    KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
  }
  std::vector<float> logits;
  logits.reserve(model->n_logit_rows() * model->config().vocab_size);
  for (int64_t i = 0; i < model->n_logit_rows(); ++i) {
    const std::span<const float> row = model->logits(i);
    logits.insert(logits.end(), row.begin(), row.end());
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

// Whole rows but for one pair of heads [begin, end), which keep `rank` dimensions of the analysis.
ModelBasis ProbeBasis(const BasisAnalysis& analysis, Range heads, bool is_qk, int rank) {
  const StatisticsShape& shape = analysis.shape;
  ModelBasis basis = IdentityBasis(shape.n_layers, shape.n_kv_heads, shape.head_dim);
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
      to.key_basis = std::move(from.key_basis);
      to.key_offset = std::move(from.key_offset);
    } else {
      to.rank_v = rank;
      to.value_basis = std::move(from.value_basis);
      to.output_basis = std::move(from.output_basis);
      to.value_offset = std::move(from.value_offset);
    }
  }
  return basis;
}

}  // namespace

namespace {

// Writes what heads [begin, end) lose together at one cut, shared out by the errors that the
// analysis expects.
void ShareLoss(const BasisAnalysis& analysis, Range heads, bool is_qk, int cut, double kl,
               CalibrationStatistics* statistics) {
  const int head_dim = analysis.shape.head_dim, rank = ProbeRanks(head_dim)[cut];
  const auto error_of = [&](int64_t h) {
    const HeadSpectra& spectra = analysis.spectra[h];
    return SumOfSquares(is_qk ? spectra.qk : spectra.v, rank, head_dim);
  };
  double expected = 0;
  for (int64_t h = heads.begin; h < heads.end; ++h) expected += error_of(h);
  std::vector<float>& probe_kl = is_qk ? statistics->probe_kl_qk : statistics->probe_kl_v;
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    const double share =
        expected > 0 ? error_of(h) / expected : 1.0 / static_cast<double>(heads.end - heads.begin);
    probe_kl[h * kProbeCuts + cut] = static_cast<float>(std::max(kl, kLeastProbeKl) * share);
  }
}

}  // namespace

Status MeasureSensitivities(const SensitivityJob& job, CalibrationStatistics* statistics) {
  const StatisticsShape& shape = statistics->shape;
  const std::vector<int> ranks = ProbeRanks(shape.head_dim);
  // Of a layer's heads.
  const int n_parts =
      std::clamp(kMostProbes / (2 * kProbeCuts * shape.n_layers), 1, shape.n_kv_heads);
  const int n_probes = 2 * kProbeCuts * shape.n_layers * n_parts;
  for (int probe = 0; probe < n_probes; ++probe) {
    if (job.on_progress) job.on_progress(static_cast<double>(probe) / n_probes);
    const bool is_qk = probe % 2 == 0;
    const int cut = probe / 2 % kProbeCuts, part = probe / (2 * kProbeCuts);
    const int64_t first = int64_t{part / n_parts} * shape.n_kv_heads;
    Range heads = ShareOf(shape.n_kv_heads, 1, part % n_parts, n_parts);
    heads = {heads.begin + first, heads.end + first};
    KVL_ASSIGN_OR_RETURN(const double kl,
                         job.kl(ProbeBasis(*job.analysis, heads, is_qk, ranks[cut])));
    ShareLoss(*job.analysis, heads, is_qk, cut, kl, statistics);
  }
  return OkStatus();
}

}  // namespace kvlathe

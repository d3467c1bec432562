#include "calibration/kl_meter.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <utility>

#include "kv/basis/probes.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/seal_schedule.h"

namespace kvlathe {
namespace {

// Bytes for the caches of a few short texts: far more than any shape takes.
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
                                                   TokenSequences texts, ThreadPool* pool,
                                                   Isa isa) {
  const auto is_as_long = [&](const auto& ids) { return ids.size() == texts.front().size(); };
  if (texts.empty() || texts.front().empty() || !std::ranges::all_of(texts, is_as_long)) {
    return Error(StatusCode::kInvalidArgument,
                 "texts to measure on must be as long as each other and not empty");
  }
  std::unique_ptr<KlMeter> meter(new KlMeter);
  meter->weights_ = std::move(weights);
  meter->texts_ = std::move(texts);
  meter->pool_ = pool;
  meter->isa_ = isa;
  KVL_ASSIGN_OR_RETURN(meter->logits_, meter->Logits(nullptr, kAllLayers));
  return meter;
}

StatusOr<std::vector<float>> KlMeter::Logits(const ModelBasis* basis, int first_layer) {
  const int64_t n_texts = std::ssize(texts_), n_scored = n_tokens() - n_context();
  SealPlan seal;
  seal.format.splits_bits = basis != nullptr && basis->heads[0].k_bits != BitSplit{};
  seal.prompt_run = kBlockSize;
  // Of a short text less, or nothing of it would be sealed.
  seal.newest = std::min(kProbeNewest, static_cast<int>(n_tokens() / 8));
  const bool is_split = seal.format.splits_bits;
  KVL_ASSIGN_OR_RETURN(auto model, Model::Create(weights_, basis, kCalibrationSinks, pool_, isa_,
                                                 is_split ? &seal : nullptr));
  Reference& reference = is_split ? split_[!basis->heads[0].key_way_back.empty()] : whole_;
  const bool is_reference = is_split ? first_layer == kAllLayers : reference.model == nullptr;
  first_layer = std::max(first_layer, 0);
  if (is_reference) reference = {};
  BlockPool blocks(kCacheBytes);
  std::deque<SequenceCache> caches;
  for (int64_t i = 0; i < n_texts; ++i) {
    caches.emplace_back(&model->layout(), &blocks).set_n_prompt(n_tokens());
  }
  const int64_t n_vocab = weights_->config().vocab_size;
  const int64_t floats_per_token = n_texts * weights_->config().hidden_dim;
  std::vector<float> logits(n_texts * n_scored * n_vocab);
  for (int64_t begin = 0; begin < n_tokens();) {
    const bool is_scored = begin >= n_context();
    const int64_t end = std::min(NextSealPoint(model->layout(), begin, n_tokens()),
                                 is_scored ? n_tokens() : n_context());
    const int64_t n = end - begin;
    std::vector<SequenceStep> steps;
    for (int64_t i = 0; i < n_texts; ++i) {
      KVL_RETURN_IF_ERROR(caches[i].Extend(static_cast<int>(n)));
      steps.push_back({&caches[i], std::span(texts_[i]).subspan(begin, n),
                       is_scored ? SequenceStep::Logits::kAll : SequenceStep::Logits::kNone});
    }
    if (is_reference) {
      KVL_RETURN_IF_ERROR(model->Forward(steps, nullptr, &reference.streams));
    } else {
      const std::span<const float> stream = reference.streams[first_layer];
      KVL_RETURN_IF_ERROR(model->ForwardFrom(
          first_layer, stream.subspan(begin * floats_per_token, n * floats_per_token), steps));
    }
    // Steps are as long as the basis lets them be: by text, logits of any two bases line up.
    for (int64_t i = 0; is_scored && i < model->n_logit_rows(); ++i) {
      const int64_t row = i / n * n_scored + begin - n_context() + i % n;
      std::ranges::copy(model->logits(i), logits.begin() + row * n_vocab);
    }
    begin = end;
  }
  if (is_reference) reference.model = std::move(model);
  return logits;
}

StatusOr<double> KlMeter::Measure(const ModelBasis& basis, int first_layer) {
  KVL_ASSIGN_OR_RETURN(const std::vector<float> logits, Logits(&basis, first_layer));
  const size_t n_vocab = weights_->config().vocab_size, n_rows = logits.size() / n_vocab;
  std::vector<double> kl(n_rows);
  pool_->Run([&](int worker_id) {
    const Range rows = ShareOf(static_cast<int64_t>(n_rows), 1, worker_id, pool_->n_workers());
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      kl[i] = KlOfRow(std::span(logits_).subspan(i * n_vocab, n_vocab),
                      std::span(logits).subspan(i * n_vocab, n_vocab));
    }
  });
  return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(n_rows);
}

}  // namespace kvlathe

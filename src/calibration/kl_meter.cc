#include "calibration/kl_meter.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "analysis/statistics/probes.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/seal/seal_schedule.h"
#include "model/model_facts.h"
#include "plan/cache_plan.h"

namespace kvlathe {
namespace {

// Bytes for the caches of a few short texts: far more than any shape takes.
constexpr int64_t kCacheBytes = int64_t{16} << 30;
// Logits of so many tokens at a time: their rows are as long as the vocabulary.
constexpr int64_t kScoredTokens = 256;

}  // namespace

StatusOr<std::unique_ptr<KlMeter>> KlMeter::Create(std::shared_ptr<ModelWeights> weights,
                                                   TokenSequences texts, ThreadPool* pool, Isa isa,
                                                   const Options& options) {
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
  meter->options_ = options;
  const int64_t n_texts = std::ssize(meter->texts_);
  meter->split_[0].n_texts = meter->split_[1].n_texts = n_texts;
  meter->whole_.n_texts =
      options.n_whole_texts > 0 ? std::min<int64_t>(options.n_whole_texts, n_texts) : n_texts;
  KVL_ASSIGN_OR_RETURN(auto model, meter->MakeModel(nullptr));
  KVL_RETURN_IF_ERROR(meter->SetReference(std::move(model), &meter->whole_));
  return meter;
}

bool KlMeter::SplitsBits(const ModelBasis* basis) const {
  return basis != nullptr && basis->heads[0].k_bits != BitSplit{};
}

StatusOr<std::unique_ptr<Model>> KlMeter::MakeModel(const ModelBasis* basis) {
  PlanParts parts{.n_sink = kCalibrationSinks};
  if (SplitsBits(basis)) {
    parts.seal = SealPlan{.format = {.codec = SplitBitsCodec{}}, .prompt_run = kBlockSize};
    // Of a short text less, or nothing of it would be sealed.
    parts.seal->newest = std::min(kProbeNewest, static_cast<int>(n_tokens() / 8));
  }
  if (options_.merge.has_value()) {
    parts.retention = RetentionPlan{.merge = options_.merge};
    // Heads that close entries of their own are sealed where a prompt ends, and behind it.
    if (parts.seal.has_value() && options_.merge->every == 0) parts.seal->prompt_run = 0;
  }
  if (basis != nullptr) parts.basis = *basis;
  const ModelFacts facts = FactsOf(weights_->config(), weights_->compute_type());
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, AssemblePlan(facts, std::move(parts)));
  return Model::Create(weights_, plan, pool_, isa_);
}

Status KlMeter::RunTexts(Model* model, int first_layer, Reference* reference,
                         const LogitsSink& sink) {
  const int64_t n_texts = reference->n_texts;
  const bool is_reference = reference->model == nullptr;
  BlockPool blocks(kCacheBytes);
  std::deque<SequenceCache> caches;
  const int64_t n_prompt = model->layout().HasRunsOfHeads() ? n_context() : n_tokens();
  for (int64_t i = 0; i < n_texts; ++i) {
    caches.emplace_back(&model->layout(), &blocks).set_n_prompt(n_prompt);
  }
  const int64_t floats_per_token = n_texts * weights_->config().hidden_dim;
  for (int64_t begin = 0; begin < n_tokens();) {
    const bool is_scored = begin >= n_context();
    const int64_t limit =
        is_scored ? begin + std::max<int64_t>(1, kScoredTokens / n_texts) : n_context();
    const int64_t end =
        std::min({NextSealPoint(model->layout(), begin, n_prompt), limit, n_tokens()});
    const int64_t n = end - begin;
    std::vector<SequenceStep> steps;
    for (int64_t i = 0; i < n_texts; ++i) {
      KVL_RETURN_IF_ERROR(caches[i].Extend(static_cast<int>(n)));
      steps.push_back({&caches[i], std::span(texts_[i]).subspan(begin, n),
                       is_scored ? SequenceStep::Logits::kAll : SequenceStep::Logits::kNone});
    }
    if (is_reference) {
      KVL_RETURN_IF_ERROR(model->Forward(steps, nullptr, &reference->streams));
    } else {
      const std::span<const float> stream = reference->streams[first_layer];
      KVL_RETURN_IF_ERROR(model->ForwardFrom(
          first_layer, stream.subspan(begin * floats_per_token, n * floats_per_token), steps));
    }
    // Steps are as long as the basis lets them be: by text, logits of any two bases line up.
    pool_->Run([&](int worker_id) {
      const Range rows = ShareOf(model->n_logit_rows(), 1, worker_id, pool_->n_workers());
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        sink(i / n * n_scored() + begin - n_context() + i % n, model->logits(i));
      }
    });
    begin = end;
  }
  return OkStatus();
}

Status KlMeter::SetReference(std::unique_ptr<Model> model, Reference* reference) {
  *reference = {.n_texts = reference->n_texts};
  const int64_t n_vocab = weights_->config().vocab_size;
  reference->logits.resize(reference->n_texts * n_scored() * n_vocab);
  KVL_RETURN_IF_ERROR(
      RunTexts(model.get(), 0, reference, [&](int64_t row, std::span<const float> logits) {
        std::ranges::copy(logits, &reference->logits[row * n_vocab]);
      }));
  reference->model = std::move(model);
  return OkStatus();
}

StatusOr<double> KlMeter::Measure(const ModelBasis& basis, int first_layer) {
  const bool is_split = SplitsBits(&basis);
  Reference* const reference = is_split ? &split_[basis.has_latent_keys()] : &whole_;
  const int64_t n_vocab = weights_->config().vocab_size;
  const ElementwiseKernels& kernels = GetElementwiseKernels(isa_);
  KVL_ASSIGN_OR_RETURN(auto model, MakeModel(&basis));
  std::vector<double> kl(reference->n_texts * n_scored());
  if (is_split && first_layer == kAllLayers) {
    KVL_RETURN_IF_ERROR(SetReference(std::move(model), reference));
    kl.resize(whole_.n_texts * n_scored());
    pool_->Run([&](int worker_id) {
      const Range rows = ShareOf(std::ssize(kl), 1, worker_id, pool_->n_workers());
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        kl[i] = kernels.kl(&whole_.logits[i * n_vocab], &reference->logits[i * n_vocab], n_vocab);
      }
    });
  } else {
    KVL_RETURN_IF_ERROR(RunTexts(model.get(), std::max(first_layer, 0), reference,
                                 [&](int64_t row, std::span<const float> logits) {
                                   kl[row] = kernels.kl(&reference->logits[row * n_vocab],
                                                        logits.data(), n_vocab);
                                 }));
  }
  return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
}

}  // namespace kvlathe

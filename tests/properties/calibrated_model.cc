#include "calibrated_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "calibration/calibrate.h"
#include "calibration/kl_meter.h"
#include "calibration/sensitivity.h"
#include "kv/blocks/block_pool.h"
#include "model/model.h"
#include "model/planned_model.h"

namespace kvlathe {
namespace {

constexpr int kSequences = 4;
constexpr int kSequenceTokens = 128;
constexpr int64_t kCacheBytes = int64_t{256} << 20;

}  // namespace

CalibratedModel::CalibratedModel(std::string name, std::shared_ptr<ModelWeights> weights,
                                 ThreadPool* threads)
    : name_(std::move(name)), weights_(std::move(weights)), threads_(threads) {
  for (int l = 0; l < config().n_layers; ++l) {
    fisher_.k.push_back(1 + l);
    fisher_.v.push_back(2 + l);
  }
  planner_ = std::make_unique<CachePlanner>(FactsOf(config(), weights_->compute_type()), this);
  Gather();
}

void CalibratedModel::Gather() {
  auto sequences = DrawRandomSequences(
      {.n_tokens = kSequences * kSequenceTokens, .seed = 1, .vocab_size = config().vocab_size},
      kSequenceTokens);
  ASSERT_TRUE(sequences.ok()) << sequences.status();
  auto model = CreateModel(weights_, {}, threads_, SelectIsa().value());
  ASSERT_TRUE(model.ok()) << model.status();
  BlockPool blocks(kCacheBytes);
  CalibrationJob job;
  job.shape = {config().n_layers, config().n_heads, config().n_kv_heads, config().head_dim};
  job.attention = config().attention;
  job.n_positions = CalibrationPositions(config().max_seq_len);
  job.rope_dim = config().rope_dim();
  job.sequences = *sequences;
  job.across_heads = true;
  job.pool = threads_;
  job.isa = SelectIsa().value();
  job.forward = [&](std::span<const int32_t> ids, QkvObserver* observer) -> Status {
    SequenceCache cache(&(*model)->layout(), &blocks);
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(ids.size())));
    const SequenceStep step{&cache, ids, SequenceStep::Logits::kNone};
    return (*model)->Forward({&step, 1}, observer);
  };
  auto statistics = Calibrate(job);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  statistics_ = *std::move(statistics);
  Probe(*sequences);
}

void CalibratedModel::Probe(const std::vector<std::vector<int32_t>>& sequences) {
  auto after = planner_->analyses().From(*Spec::Parse("lathe"), statistics_);
  auto before = planner_->analyses().From(*Spec::Parse("lathe(keys=before)"), statistics_);
  ASSERT_TRUE(after.ok() && before.ok()) << after.status() << before.status();
  const ProbeTexts texts = ChooseProbeTexts(sequences, statistics_.shape);
  auto meter = KlMeter::Create(weights_, texts.texts, threads_, SelectIsa().value(), texts.options);
  ASSERT_TRUE(meter.ok()) << meter.status();
  SensitivityJob job{.analysis = &*after, .before_rope = &*before};
  job.kl = [&](const ModelBasis& basis, int first_layer) {
    return (*meter)->Measure(basis, first_layer);
  };
  const Status status = MeasureSensitivities(job, &statistics_);
  ASSERT_TRUE(status.ok()) << status;
}

}  // namespace kvlathe

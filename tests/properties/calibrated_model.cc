#include "calibrated_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "analysis/statistics/statistics.h"
#include "calibration/calibrate.h"
#include "calibration/gradients/decoder_gradients.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
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
  planner_ = std::make_unique<CachePlanner>(FactsOf(config(), weights_->types().rows), this);
  Gather();
}

void CalibratedModel::Gather() {
  auto sequences = DrawRandomSequences(
      {.n_tokens = kSequences * kSequenceTokens, .seed = 1, .vocab_size = config().vocab_size},
      std::min(kSequenceTokens, config().max_seq_len));
  ASSERT_TRUE(sequences.ok()) << sequences.status();
  auto model = CreateModel(weights_, {});
  ASSERT_TRUE(model.ok()) << model.status();
  HostPool blocks(kCacheBytes);
  CalibrationJob job;
  job.shape = {config().n_layers, config().n_heads, config().n_kv_heads, config().head_dim};
  job.attention = config().attention;
  job.n_positions = CalibrationPositions(config().max_seq_len);
  job.rope_dim = config().rope_dim();
  const std::optional<QkNormConfig>& qk_norms = config().norms.of_qk;
  job.turns_on = !qk_norms.has_value() || !qk_norms->weighs_turned_queries;
  job.sequences = *sequences;
  job.across_heads = job.outputs = true;
  job.pool = threads_;
  job.isa = SelectIsa().value();
  job.forward = [&](std::span<const int32_t> ids, QkvObserver* observer) -> Status {
    SequenceCache cache(&(*model)->layout(), &blocks);
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(ids.size())));
    const SequenceStep step{&cache, ids, SequenceStep::Logits::kNone};
    return (*model)->Forward({&step, 1}, observer);
  };
  DecoderGradients gradients(weights_.get(), threads_, SelectIsa().value(), kCalibrationNewest);
  job.gradients = [&](std::span<const int32_t> ids, uint64_t seed, QkvObserver* observer,
                      const DecoderGradients::Sink& sink) {
    return gradients.Run(ids, seed, sink, observer).status();
  };
  auto statistics = Calibrate(job);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  statistics_ = *std::move(statistics);
}

}  // namespace kvlathe

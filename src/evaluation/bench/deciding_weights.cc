#include "evaluation/bench/deciding_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/kv_forecast.h"
#include "kv/blocks/block_pool.h"
#include "model/model.h"
#include "model/model_facts.h"
#include "model/observer.h"
#include "plan/cache_plan.h"

namespace kvlathe {
namespace {

constexpr int kReadTokens = 1024;
constexpr double kLargestCompression = 64;
constexpr int kWindow = 12;  // of the entries that are read, as dmc has it by default
constexpr int kMostRounds = 8;
constexpr double kNearEnough = 0.02;  // of the ratio

// What keys have in one channel before RoPE, of all layers and heads.
class ChannelOfKeys : public QkvObserver {
 public:
  ChannelOfKeys(const ModelConfig& config, bool is_last)
      : n_kv_heads_(config.n_kv_heads),
        head_dim_(config.head_dim),
        channel_(is_last ? config.head_dim - 1 : 0) {}
  void Observe(const QkvView& view) override {
    for (int64_t row = 0; row < int64_t{view.n_tokens} * n_kv_heads_; ++row) {
      values_.push_back(view.k_pre[row * head_dim_ + channel_]);
    }
  }
  // Below which this share of the values lies.
  float Quantile(double share) {
    const auto at =
        values_.begin() + static_cast<int64_t>(share * static_cast<double>(values_.size() - 1));
    std::nth_element(values_.begin(), at, values_.end());
    return *at;
  }

 private:
  int n_kv_heads_, head_dim_, channel_;
  std::vector<float> values_;
};

// Reads the tokens and returns the share of positions that are entries then.
StatusOr<double> Read(const std::shared_ptr<ModelWeights>& weights, PlanParts parts,
                      std::span<const int32_t> ids, QkvObserver* observer) {
  const ModelFacts facts = FactsOf(weights->config(), weights->types().rows);
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, AssemblePlan(facts, std::move(parts)));
  KVL_ASSIGN_OR_RETURN(const auto model, Model::Create(weights, plan));
  BlockPool pool(std::numeric_limits<int64_t>::max(), &model->machine().memory());
  SequenceCache cache(&model->layout(), &pool);
  KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(ids.size())));
  const SequenceStep step{&cache, ids, SequenceStep::Logits::kNone};
  KVL_RETURN_IF_ERROR(model->Forward({&step, 1}, observer));
  return MergedCountsOf(cache).share();
}

}  // namespace

Status DecideAtRandom(double compression, const DmcConfig& dmc,
                      const std::shared_ptr<ModelWeights>& weights) {
  if (!(compression >= 1 && compression <= kLargestCompression)) {
    return Error(StatusCode::kInvalidArgument,
                 "a compression ratio of {}: entries are of 1 to {} positions on average",
                 compression, kLargestCompression);
  }
  Random random(0);
  std::vector<int32_t> ids(std::min(kReadTokens, weights->config().max_seq_len));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(weights->config().vocab_size));
  weights->set_dmc(std::nullopt);  // which leaves the channel where it is seen
  ChannelOfKeys channel(weights->config(), dmc.is_last);
  KVL_RETURN_IF_ERROR(Read(weights, {}, ids, &channel).status());
  DmcConfig decided = dmc;
  double share = 1 / compression;  // of the values that lie below the offset
  for (int round = 0; round < kMostRounds; ++round) {
    decided.offset = channel.Quantile(share);
    weights->set_dmc(decided);
    const PlanParts merging{.retention = RetentionPlan{.merge = MergePlan{.window = kWindow}}};
    KVL_ASSIGN_OR_RETURN(const double kept, Read(weights, merging, ids, nullptr));
    if (std::abs(kept * compression - 1) < kNearEnough) break;
    share = std::min(1.0, share / (kept * compression));
  }
  return OkStatus();
}

}  // namespace kvlathe

// Plans of a cache without weights take what they need from statistics that were given.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/ranks/fisher.h"
#include "analysis/statistics/statistics.h"
#include "base/threads.h"
#include "model/config.h"
#include "plan/plan_source.h"

namespace kvlathe {

// Statistics and where they come from: a file, or the name that errors give them.
struct NamedStatistics {
  std::shared_ptr<const CalibrationStatistics> statistics;  // null: none were given
  std::string name;
};

// What a caller who has the weights knows of them, of each layer and KV head; empty: nobody has
// them.
struct GivenWeights {
  // W_h^T W_h of W_K and W_V, for y = x W, and the sum of W_O,h W_O,h^T over the query heads that
  // read a KV head (model/weight_grams.h): [n_layers * n_kv_heads], each [head_dim, head_dim].
  std::vector<std::vector<double>> key_grams, value_grams, output_grams;
  // [n_layers * n_kv_heads], each [head_dim]; empty: there are none.
  std::vector<std::vector<float>> key_biases, value_biases;
};

// What weights that nobody gives would say is taken from the rows instead: the Gram matrices of W_V
// and W_K are the second moments of values and of keys before RoPE, which are those of the weights
// for inputs of one size in all directions; W_O counts every direction alike; and there are no
// biases.
class GivenStatistics : public PlanSource {
 public:
  // `config` and `pool` outlive this.
  GivenStatistics(const ModelConfig* config, NamedStatistics given, GivenWeights weights,
                  ThreadPool* pool)
      : config_(*config), given_(std::move(given)), weights_(std::move(weights)), pool_(pool) {}

  bool is_random() const override { return false; }
  // kInvalidArgument, with the way out, where there are none, where they are of another shape or
  // lack what is asked for.
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) override;
  // Of fisher.json beside the file; kInvalidArgument where there is none.
  StatusOr<const FisherWeights*> Fisher(const Spec& spec) override;
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) override;
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) override;
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override;
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override { return weights_.value_biases; }
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override { return weights_.key_biases; }
  ThreadPool* threads() override { return pool_; }

 private:
  StatusOr<std::vector<std::vector<double>>> Grams(const HeadMoments& rows, int n_joined) const;
  StatusOr<std::vector<std::vector<double>>> GramsOfWeights(
      const std::vector<std::vector<double>>& grams, int n_joined) const;

  const ModelConfig& config_;
  NamedStatistics given_;
  GivenWeights weights_;
  ThreadPool* pool_;
  std::optional<FisherWeights> fisher_;
};

}  // namespace kvlathe

// A small model with random weights is calibrated like any other, and is a source of plans.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "model/config.h"
#include "model/weight_grams.h"
#include "plan/planner.h"

namespace kvlathe {

class CalibratedModel : public PlanSource {
 public:
  // Of weights that are loaded, on random tokens.
  CalibratedModel(std::string name, std::shared_ptr<ModelWeights> weights, ThreadPool* threads);

  const std::string& name() const { return name_; }
  const ModelConfig& config() const { return weights_->config(); }
  std::shared_ptr<ModelWeights> weights() const { return weights_; }
  CachePlanner& planner() { return *planner_; }

  bool is_random() const override { return false; }
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed&) override {
    return &statistics_;
  }
  StatusOr<const FisherWeights*> Fisher(const Spec&) override { return &fisher_; }
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) override {
    return WeightGrams(weights_.get()).ValueGrams(n_joined);
  }
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) override {
    return WeightGrams(weights_.get()).KeyGrams(n_joined);
  }
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override {
    return WeightGrams(weights_.get()).OutputGrams(threads_);
  }
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override {
    return WeightGrams(weights_.get()).ValueBiases();
  }
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override {
    return WeightGrams(weights_.get()).KeyBiases();
  }
  ThreadPool* threads() override { return threads_; }

 private:
  void Gather();

  std::string name_;
  std::shared_ptr<ModelWeights> weights_;
  ThreadPool* threads_;
  CalibrationStatistics statistics_;
  FisherWeights fisher_;
  std::unique_ptr<CachePlanner> planner_;
};

}  // namespace kvlathe

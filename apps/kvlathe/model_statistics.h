// Where the statistics of a workspace's model come from: files, or a calibration that runs when a
// spec first needs it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvlathe/options.h"
#include "model/config.h"
#include "plan/plan_source.h"

namespace kvlathe {

class Workspace;
struct CalibrationRun;

class ModelStatistics : public PlanSource {
 public:
  explicit ModelStatistics(Workspace* workspace) : workspace_(workspace) {}  // which outlives it

  bool is_random() const override;
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) override;
  // Of fisher.json beside --basis, else in the model's directory.
  StatusOr<const FisherWeights*> Fisher(const Spec& spec) override;
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) override;
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) override;
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override;
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override;
  std::vector<std::vector<float>> KeyBiases() override;
  ThreadPool* threads() override;

 private:
  const ModelOptions& options() const;
  const ModelConfig& config() const;
  // Of the model's calibration text, or of the one that comes with kvlathe, unless the user chose
  // statistics.
  StatusOr<const CalibrationStatistics*> TextStatistics(CalibrationRun run);
  using HeldStatistics = std::map<std::string, CalibrationStatistics>;  // by merging
  StatusOr<const CalibrationStatistics*> Hold(const CalibrationRun& run, HeldStatistics* held);
  StatusOr<CalibrationStatistics> FindStatistics(const CalibrationRun& run);

  Workspace* workspace_;
  HeldStatistics statistics_;
  HeldStatistics text_statistics_;
  std::optional<FisherWeights> fisher_;
};

}  // namespace kvlathe

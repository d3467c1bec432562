// Where the statistics of a workspace's model come from: files, or a calibration that runs when a
// spec first needs it. What is expected to be asked for comes from the same calibration.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "calibration/statistics_store.h"
#include "model/config.h"
#include "plan/plan_source.h"
#include "runtime/open_options.h"

namespace kvlathe {

class Workspace;
struct CalibrationRun;

class ModelStatistics : public PlanSource {
 public:
  explicit ModelStatistics(Workspace* workspace) : workspace_(workspace) {}  // which outlives it

  // Says what will be asked for, before any of it is: a calibration then gathers all of it that
  // comes from the same tokens. What was expected and is never asked for costs nothing by itself.
  void Expect(std::span<const StatisticsNeed> needs);

  bool is_random() const override;
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) override;
  // Of fisher.json beside --basis, else in the model's directory; without one they are measured on
  // the text that calibrates the model, and kept in the user's cache directory.
  StatusOr<const FisherWeights*> Fisher(const Spec& spec) override;
  // Of the text that calibrates the model.
  StatusOr<std::optional<BasisHistograms>> HistogramsIn(const ModelBasis& basis) override;
  // Of the model's tokenizer.
  void AddRepeatWords(RepeatPlan* plan) override;
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) override;
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) override;
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override;
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override;
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override;
  ThreadPool* threads() override;

 private:
  const OpenOptions& options() const;
  const ModelConfig& config() const;
  struct Held {           // what was found or made in this process
    std::string source;   // the text, or empty for random tokens
    std::string merging;  // StatisticsSource::merging
    StatisticsContents contents;
    bool is_chosen;  // by the user: what it lacks is not made elsewhere
    std::unique_ptr<const CalibrationStatistics> statistics;
  };
  // A file that the user chose, with --basis or beside the model.
  bool HasOwnChoice(const CalibrationRun& run) const;
  // The run that a need means, with all that is expected beside it.
  StatusOr<CalibrationRun> RunFor(const StatisticsNeed& need) const;
  const Held* FindHeld(const CalibrationRun& run, const StatisticsNeed& need) const;
  StatusOr<StatisticsRequest> RequestFor(const CalibrationRun& run,
                                         const StatisticsNeed& need) const;
  StatusOr<FisherWeights> FindOrMeasureFisher(const Spec& spec);
  // Calls measure(workspace) with one that holds the whole model: where ranks share it, rank 0
  // opens it once more for that. The other ranks measure nothing: kFailedPrecondition says what
  // they need.
  template <typename F>
  std::invoke_result_t<F, Workspace*> OnWholeModel(const F& measure) const;
  // Positions that kept statistics of this model may be of, the most first.
  std::vector<int> ModelPositions() const;

  Workspace* workspace_;
  std::vector<StatisticsNeed> expected_;
  std::vector<Held> held_;  // whose statistics stay where they are
  std::optional<FisherWeights> fisher_;
};

}  // namespace kvlathe

// Calibration statistics, bases, ranks and codebooks of a workspace's model: each is found once,
// when a spec first needs it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bases/method.h"
#include "analysis/ranks/fisher.h"
#include "kv/spec/spec.h"
#include "kvlathe/options.h"
#include "model/model.h"

namespace kvlathe {

class Workspace;
struct CalibrationRun;

// Whether the spec's basis is one whose ranks are chosen before a prompt (not svd-online's).
bool HasCalibratedBasis(const Spec& spec);
// Refuses a basis whose ranks nobody can draw for random weights: ranks=fisher.
Status CheckDrawnRanks(const Spec& spec);

class ModelBases {
 public:
  explicit ModelBases(Workspace* workspace);  // which outlives it

  StatusOr<const BasisAnalysis*> Analysis(const Stage& stage);
  // The same from other statistics of this model.
  StatusOr<BasisAnalysis> Analyse(const Stage& stage, const CalibrationStatistics& statistics);

  // At the rate, or as the spec says. Of a spec with a calibrated basis, like the next.
  StatusOr<RankAllocation> ChooseRanks(const Spec& spec, std::optional<double> rate = std::nullopt);
  // The maps of a spec, cut to the ranks; of all dimensions where they stay resident.
  StatusOr<ModelBasis> BasisAt(const Spec& spec, const RankAllocation& allocation);
  // Drawn maps in the shapes that the spec asks for, for a model with random weights.
  StatusOr<ModelBasis> RandomBasis(const Spec& spec);
  // For a quantizer with codebooks; basis: null, or the one before it.
  StatusOr<ModelCodebooks> Codebooks(const Stage& quantizer, const SealPlan& seal,
                                     const ModelBasis* basis);
  // Whether Fisher information is there, for a spec whose ranks need it: kNotFound says how to make
  // it.
  Status CheckFisher(const Spec& spec);
  // Stored bytes over those of 16 bits at the model's full context.
  StatusOr<double> FractionOf(const Spec& spec);

 private:
  struct KnownAnalysis {
    std::string method;
    BasisOptions options;
    std::unique_ptr<BasisAnalysis> analysis;
  };

  const ModelOptions& options() const;
  const ModelConfig& config() const;
  // Of the model's calibration text, or of the one that comes with kvlathe, unless the user chose
  // statistics.
  StatusOr<const CalibrationStatistics*> TextStatistics(CalibrationRun run);
  StatusOr<const CalibrationStatistics*> Hold(const CalibrationRun& run,
                                              std::optional<CalibrationStatistics>* held);
  StatusOr<CalibrationStatistics> FindStatistics(const CalibrationRun& run);
  // Of fisher.json beside --basis, else in the model's directory.
  StatusOr<const FisherWeights*> Fisher(const Spec& spec);
  // Of a basis whose maps sequences find themselves: these ranks, and what the maps are found from.
  StatusOr<ModelBasis> OnlineBasis(const Stage& stage, const std::vector<HeadRanks>& ranks);

  Workspace* workspace_;
  std::optional<CalibrationStatistics> statistics_;
  std::optional<CalibrationStatistics> text_statistics_;
  std::vector<std::vector<double>> value_grams_, output_grams_;  // once needed
  std::vector<std::vector<float>> key_biases_, value_biases_;
  std::vector<KnownAnalysis> analyses_;
  std::optional<FisherWeights> fisher_;
};

}  // namespace kvlathe

// A plan asks a source for what is known of a model: its calibration and its weights. Only the
// source deals with files, progress and messages.
#pragma once

#include <optional>
#include <vector>

#include "analysis/bases/basis.h"
#include "analysis/ranks/fisher.h"
#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "base/threads.h"
#include "kv/quantizer/codebooks.h"
#include "kv/retention/retention_plan.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// What statistics must hold.
struct StatisticsNeed {
  bool of_text = false;       // they should come from a text: random tokens suit the method badly
  bool across_heads = false;  // they must hold moments across the KV heads of a layer
  bool gradients = false;     // they must hold what errors of rows cost
  bool key_values = false;    // they must hold moments of keys with their values
  bool outputs = false;       // they must hold moments of what attention makes of values
  // Rows after RoPE are read, whose moments hold for the positions that they were taken at. Without
  // it, statistics that were made for any context of the model will do.
  bool after_rope = false;
  // Only what a file of lathe's maps holds is read (analysis/bases/lathe_maps.h), of these keys.
  std::optional<KeyRows> maps_of = {};
  std::optional<MergePlan> merge = {};  // of the rows that this leaves, where positions merge

  bool operator==(const StatisticsNeed&) const = default;
};

// How a spec merges positions; none if it does not.
std::optional<MergePlan> MergingOf(const Spec& spec);

// Whether the spec is of lathe with ranks alone: a row is cut when it is stored, with bits when its
// block is sealed. A question for an accuracy is answered with bits.
bool CutsAtOnce(const Spec& spec);

// What the statistics must hold from which the spec's basis is made; none where it has no basis
// that is found before a prompt.
std::optional<StatisticsNeed> BasisNeedOf(const Spec& spec);
// The same of its codebooks.
std::optional<StatisticsNeed> CodebookNeedOf(const Spec& spec);
// All that a plan of the spec asks a source for, so that a source can gather it at once.
std::vector<StatisticsNeed> StatisticsNeedsOf(const Spec& spec);

// Everything that a source returns lives as long as the source.
class PlanSource {
 public:
  virtual ~PlanSource() = default;

  // Whether the weights are drawn, so that nothing measured of them means anything. Bases are then
  // drawn too, codebooks are even, and nobody asks for Statistics and Fisher.
  virtual bool is_random() const = 0;
  virtual StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) = 0;
  // The Fisher information by which the spec's ranks are chosen.
  virtual StatusOr<const FisherWeights*> Fisher(const Spec& spec) = 0;

  // Of text in a basis whose heads have maps of their own; none where nothing runs the model.
  virtual StatusOr<std::optional<BasisHistograms>> HistogramsIn(const ModelBasis& /*basis*/) {
    return std::nullopt;
  }

  // Words that ask for a text again, and how many positions of it are read at a time is the plan's;
  // none where nothing knows the model's words.
  virtual void AddRepeatWords(RepeatPlan* /*plan*/) {}

  // Gram matrices and biases of the weights, in the shapes of BasisInputs.
  virtual StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) = 0;
  virtual StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) = 0;
  virtual StatusOr<std::vector<std::vector<double>>> OutputGrams() = 0;
  virtual StatusOr<std::vector<std::vector<float>>> ValueBiases() = 0;
  virtual StatusOr<std::vector<std::vector<float>>> KeyBiases() = 0;
  virtual ThreadPool* threads() = 0;
};

}  // namespace kvlathe

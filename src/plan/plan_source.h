// Where a plan finds what is known of a model: its calibration and its weights. Files, progress and
// what is said while it is made are the source's business.
#pragma once

#include <vector>

#include "analysis/ranks/fisher.h"
#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "base/threads.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// What statistics must hold.
struct StatisticsNeed {
  bool of_text = false;       // statistics of random tokens suit it badly
  bool across_heads = false;  // those across the KV heads of a layer
  bool probes = false;        // what cuts and noise cost
};

// What it gives lives as long as the source.
class PlanSource {
 public:
  virtual ~PlanSource() = default;

  // Whether the weights are drawn, so that nothing measured of them means anything: bases are then
  // drawn too, and codebooks are even. Statistics and Fisher are not asked for.
  virtual bool is_random() const = 0;
  virtual StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) = 0;
  // For the spec, whose ranks are chosen by it: kNotFound says how to make it.
  virtual StatusOr<const FisherWeights*> Fisher(const Spec& spec) = 0;

  // Of the weights, in the shapes of BasisInputs.
  virtual StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) = 0;
  virtual StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) = 0;
  virtual StatusOr<std::vector<std::vector<double>>> OutputGrams() = 0;
  virtual StatusOr<std::vector<std::vector<float>>> ValueBiases() = 0;
  virtual std::vector<std::vector<float>> KeyBiases() = 0;
  virtual ThreadPool* threads() = 0;
};

}  // namespace kvlathe

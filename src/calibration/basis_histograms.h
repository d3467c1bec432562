// Histograms of what a basis stores, taken of rows of a text: codebooks of its channels are fitted
// to them (kv/quantizer/codebooks.h).
#pragma once

#include <span>
#include <vector>

#include "analysis/bases/basis.h"
#include "base/threads.h"
#include "calibration/position_shift.h"
#include "kv/quantizer/codebooks.h"
#include "model/observer.h"

namespace kvlathe {

// Rows of the first kCalibrationSinks positions do not count. Cost per token and head: head_dim
// times its ranks multiply-adds. Heads have maps of their own, and positions do not merge.
class BasisHistogramSums : public QkvObserver {
 public:
  // `basis` and `pool` outlive this.
  BasisHistogramSums(const ModelBasis* basis, ThreadPool* pool);

  // Keys after RoPE that are seen from now on are turned on by the shift of their layer,
  // [n_layers], which outlives its use.
  void SetShifts(std::span<const PositionShift> shifts) { shifts_ = shifts; }
  void Observe(const QkvView& view) override;
  const BasisHistograms& histograms() const { return histograms_; }

 private:
  void AddHead(const QkvView& view, int kv_head_idx, std::vector<float>* rows);

  const ModelBasis* basis_;
  ThreadPool* pool_;
  std::span<const PositionShift> shifts_;  // empty: none
  std::vector<std::vector<float>> rows_;   // of the workers
  BasisHistograms histograms_;
};

}  // namespace kvlathe

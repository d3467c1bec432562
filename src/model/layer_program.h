// A layer is a list of steps, which is compiled once from the model's config and the cache's
// layout. A family or a method of retention adds a step to the list, or an option to a step.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/forward.h"
#include "model/layer.h"
#include "model/steps/seal.h"
#include "model/steps/step.h"

namespace kvlathe {

// What of a layer a program runs.
enum class LayerParts {
  kAll,
  // From rows of queries, keys and values, which come from outside, to what attention puts out: the
  // caller fills Activations::qk, and `values` or, where no map changes them, `v`; rows of outputs
  // are then in OutputsOf.
  kAttention,
  // The same but for what queries are there for: rows go to the cache and are sealed.
  kStorage,
};

class LayerProgram {
 public:
  // Chooses the steps of `layer`, of which only the codebooks may change later.
  explicit LayerProgram(std::shared_ptr<Layer> layer, LayerParts parts = LayerParts::kAll);

  Status Run(ForwardState* state);
  // Seals runs of this layer outside a forward (Model::SealRuns), where plans know a cache by its
  // place in the list; one status for each cache.
  StatusOr<std::vector<Status>> SealEach(std::span<SequenceCache* const> caches,
                                         ForwardState* state) const;

  std::span<const std::unique_ptr<LayerStep>> steps() const { return steps_; }
  const Layer& layer() const { return *layer_; }
  void set_codebooks(const CodebooksId& codebooks) { layer_->codebooks = codebooks; }

 private:
  template <typename Step, typename... Args>
  void Add(Args... args) {
    steps_.push_back(std::make_unique<Step>(layer_.get(), args...));
  }
  // Adds the steps from the residual stream to rows of queries, keys and values.
  void AddProjections();
  // Adds the steps from rows to the cache and to what attention puts out, or to the cache alone.
  void AddAttention(bool attends);
  // Adds the steps that add attention's output and the feed-forward part to the residual stream.
  void AddOutputs();

  std::shared_ptr<Layer> layer_;
  std::vector<std::unique_ptr<LayerStep>> steps_;
  SealStep* seal_ = nullptr;  // one of steps_; null if nothing is sealed
};

// How many numbers a layer needs of each buffer of the activations, per token.
ActivationWidths WidthsOf(const Layer& layer);
// Of those, the ones of a layer whose rows come from outside.
ActivationWidths RowWidthsOf(const Layer& layer);

// Rows of the model's heads, of types.activations, as the layer's attention puts them out.
inline const MachineBuffer& OutputsOf(const Layer& layer, const Activations& a) {
  return layer.rows.maps_outputs() ? a.outputs : a.attended;
}

}  // namespace kvlathe

// A layer as a list of steps, compiled once from the model's config and the cache's layout. What a
// family or a method of retention adds is a step of the list or an option of one.
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

class LayerProgram {
 public:
  // Chooses the steps of `layer`, which is final but for its codebooks.
  explicit LayerProgram(std::unique_ptr<Layer> layer);

  Status Run(ForwardState* state);
  // Seals runs of this layer outside a forward (Model::SealRuns); one status for each cache.
  std::vector<Status> SealEach(std::span<SequenceCache* const> caches, ForwardState* state) const;
  // In place of Run: blocks of runs that end with the step hold zeros, and are sealed.
  Status Skip(ForwardState* state);

  std::span<const std::unique_ptr<LayerStep>> steps() const { return steps_; }
  const Layer& layer() const { return *layer_; }
  void set_codebooks(const LayerCodebooks* codebooks) { layer_->codebooks = codebooks; }

 private:
  template <typename Step, typename... Args>
  void Add(Args... args) {
    steps_.push_back(std::make_unique<Step>(layer_.get(), args...));
  }
  // From the residual stream to rows of queries, keys and values.
  void AddProjections();
  // From rows to the cache and to what attention puts out.
  void AddAttention();
  // The output of attention and the feed-forward part, to the residual stream.
  void AddOutputs();

  std::unique_ptr<Layer> layer_;
  std::vector<std::unique_ptr<LayerStep>> steps_;
  SealStep* seal_ = nullptr;  // of steps_; null: nothing is sealed
};

// What a layer needs of the activations, per token.
ActivationWidths WidthsOf(const Layer& layer);

}  // namespace kvlathe

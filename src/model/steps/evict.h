// Drops entries that the model let go (DMS, docs/methods/dms.md).
#pragma once

#include <cstddef>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// For a model of which a channel of queries decides (DmsConfig::QueryChannel): moves it to
// Activations::decisions; it is zero from here on.
class TakeQueryChannelStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "take query channel"; }
  Status Run(ForwardState* state) override;
};

// Writes down what each token says of an entry: by the channel that was taken from its queries, or
// by the residual stream as the layer got it.
// Where the step ends at a prune point, entries leave that may and that no later token sees.
class EvictStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "evict"; }
  Status Run(ForwardState* state) override;

 private:
  // The tokens of a sequence, of which the first is in row first_row of the batch.
  struct Place {
    const SequenceStep& step;
    int64_t first_row;
  };

  // What is decided, [n_tokens, n_kv_heads]: a positive number lets an entry go.
  std::vector<float> Decide(ForwardState* state) const;
  // Of the residual stream, in the same shape.
  std::vector<float> ProjectStream(ForwardState* state) const;
  // Adds what was decided to the flags of a head.
  void WriteFlags(const Place& place, int kv_head_idx, std::span<const float> decisions,
                  std::vector<std::byte>* flags) const;
  void SweepSequence(SequenceCache* cache, ForwardState* state,
                     std::span<const std::vector<std::byte>> flags);

  std::vector<PruneHead> heads_;
};

}  // namespace kvlathe

#include "model/forward.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

void StepSequences::Begin(std::span<const SequenceStep> steps, int first_layer) {
  steps_ = steps;
  first_layer_ = first_layer;
  failures_.assign(steps.size(), OkStatus());
  sealing_.clear();
  for (const SequenceStep& step : steps) {
    if (step.cache->must_seal()) sealing_.push_back(step.cache);
  }
}

int StepSequences::NumberOf(const SequenceCache* cache) const {
  const auto step = std::ranges::find(steps_, cache, &SequenceStep::cache);
  KVL_CHECK(step != steps_.end());
  return static_cast<int>(step - steps_.begin());
}

void StepSequences::Fail(SequenceCache* cache, const Status& status) {
  cache->SetFailed();
  KVL_CHECK(!status.ok());
  failures_[NumberOf(cache)].Update(status);
  std::erase(sealing_, cache);
}

void StepSequences::Learn(const StepReport& report) {
  for (const auto& [sequence, layer_idx, status] : report.failures) {
    Fail(steps_[sequence].cache,
         Error(status.code(), "layer {}: {}", first_layer_ + layer_idx, MessageOf(status)));
  }
  for (const auto& [sequence, cost] : report.reencoded) {
    steps_[sequence].cache->mutable_reencoding()->Add(cost);
  }
}

bool StepSequences::AllFailed() const {
  return std::ranges::none_of(failures_, [](const Status& s) { return s.ok(); });
}

}  // namespace kvlathe

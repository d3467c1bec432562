#include "model/forward.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

void StepSequences::Begin(std::span<const SequenceStep> steps) {
  steps_ = steps;
  failures_.assign(steps.size(), OkStatus());
  sealing_.clear();
  for (const SequenceStep& step : steps) {
    if (step.cache->must_seal()) sealing_.push_back(step.cache);
  }
}

void StepSequences::Fail(const SequenceCache* cache, const Status& status) {
  const auto step = std::ranges::find(steps_, cache, &SequenceStep::cache);
  KVL_CHECK(step != steps_.end() && !status.ok());
  failures_[step - steps_.begin()].Update(status);
  std::erase(sealing_, cache);
}

bool StepSequences::AllFailed() const {
  return std::ranges::none_of(failures_, [](const Status& s) { return s.ok(); });
}

Status StepSequences::FirstFailure() const {
  const auto failed = std::ranges::find_if(failures_, [](const Status& s) { return !s.ok(); });
  return failed == failures_.end() ? OkStatus() : *failed;
}

}  // namespace kvlathe

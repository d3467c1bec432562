#include "engine/prompt_pacing.h"

#include <algorithm>

namespace kvlathe {

void PromptPacing::Note(const StepWork& work, double seconds) {
  if (work.n_decode_tokens == 0) {
    owed_seconds_ = 0;  // nobody waited
  } else if (work.n_fill_tokens == 0) {
    decode_seconds_ = seconds;
    if (prompts_go_on()) return;
    owed_seconds_ -= seconds;
    --n_steps_at_most_;
  } else {
    const double of_prompts = std::max(0.0, seconds - decode_seconds_);
    owed_seconds_ = of_prompts * (1 - prompt_share_) / prompt_share_;
    n_steps_at_most_ = work.n_fill_tokens;
  }
}

}  // namespace kvlathe

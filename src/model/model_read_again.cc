// Reads prompts again where caches choose by that what stays.
#include <vector>

#include "base/check.h"
#include "kv/retention/prompt_repeat.h"
#include "model/model.h"

namespace kvlathe {

Status Model::ReadPromptAgain(SequenceCache* cache, std::span<const int32_t> prompt,
                              int64_t chunk) {
  KVL_CHECK(cache->must_read_again());
  KVL_CHECK_LE(cache->n_prompt(), std::ssize(prompt));
  PromptRepeat repeat(&cache->layout().retention->repeat, cache->n_prompt());
  while (!repeat.is_done()) {
    const std::vector<int32_t> tokens = repeat.Next(prompt, chunk);
    KVL_RETURN_IF_ERROR(cache->ExtendOnTrial(static_cast<int>(tokens.size())));
    const SequenceStep step{cache, tokens, SequenceStep::Logits::kNone};
    KVL_RETURN_IF_ERROR(Forward({&step, 1}));
    if (repeat.Advance(prompt, std::ssize(tokens))) {
      cache->TakeBack(static_cast<int>(cache->n_prompt() - 1));
    }
  }
  cache->EndReadingAgain();
  return OkStatus();
}

}  // namespace kvlathe

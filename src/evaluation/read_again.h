// A prompt is read again where its cache chooses by that what stays
// (RetentionPlan::Votes::kRepeat).
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"

namespace kvlathe {

// For a cache that must_read_again(): reads its prompt again in chunks of at most `chunk` tokens,
// and forgets that but for the votes. `prompt` begins with all tokens of the cache's prompt. Errors
// are those of ExtendOnTrial and Forward.
Status ReadPromptAgain(Model* model, SequenceCache* cache, std::span<const int32_t> prompt,
                       int64_t chunk);

}  // namespace kvlathe

// A prompt that follows other text, as that of a session that goes on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvlathe {

// Ids of a prompt that follows other text, without BOS. A tokenizer that puts a space in front of
// every text does so here as well; a prompt that begins with a space has it already.
StatusOr<std::vector<int32_t>> TokenizeFollowing(const Tokenizer& tokenizer,
                                                 std::string_view prompt);

}  // namespace kvlathe

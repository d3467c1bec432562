// Where the answer of a chat ends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvlathe {

struct ChatEnds {
  std::vector<int32_t> ids;        // tokens that stand for one of the texts
  std::vector<std::string> texts;  // those that no token of the vocabulary stands for
};

// AnswerFormat::ends as a tokenizer sees them.
ChatEnds FindChatEnds(const Tokenizer& tokenizer, std::span<const std::string> ends);

}  // namespace kvlathe

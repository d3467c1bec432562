// Fill marks are the tokens by which a model of code is asked for what stands between two texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace kvlathe::api {

struct FillMarks {
  int32_t prefix = 0, suffix = 0, middle = 0;
  // In front of a further file of the same project and of its name; none: the model knows none.
  std::optional<int32_t> file;
  std::vector<int32_t> ends;  // at which the middle ends, beside the model's own ends
};

// By the texts that models write them with: Qwen and Granite, StarCoder, DeepSeek, CodeGemma,
// Codestral. Nothing: this vocabulary has none of them.
std::optional<FillMarks> FindFillMarks(const Tokenizer& tokenizer);

struct NamedText {
  std::string name, text;
};

// The tokens behind which the middle follows. `files` need marks.file.
StatusOr<std::vector<int32_t>> TokensToFill(const Tokenizer& tokenizer, const FillMarks& marks,
                                            const std::vector<NamedText>& files,
                                            std::string_view prefix, std::string_view suffix);

}  // namespace kvlathe::api

// A BPE vocabulary has two halves, wherever they are written: tokens and merges.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/merges.h"
#include "tokenizer/vocabulary.h"

namespace kvlathe {

// {"token": id, ...}
Status AddVocabulary(const nlohmann::json& object, Vocabulary* vocabulary);

// ["left right", ...] or [["left", "right"], ...], best first. kDataLoss if a side or the joined
// text is not in the vocabulary. The right side loses its first prefix_bytes when they join.
Status AddMerges(const nlohmann::json& list, const Vocabulary& vocabulary, MergeTable* merges,
                 size_t prefix_bytes = 0);

// The same list from a file that is not JSON: "left right" texts.
Status AddMerges(const std::vector<std::string_view>& list, const Vocabulary& vocabulary,
                 MergeTable* merges);

// merges.txt: a line "#version..." if any, then "left right" lines, best first.
Status AddMergeLines(std::string_view text, const Vocabulary& vocabulary, MergeTable* merges);

}  // namespace kvlathe

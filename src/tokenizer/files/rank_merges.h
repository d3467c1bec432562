// Vocabularies whose ranks are their merges, as tiktoken and tekken have them.
#pragma once

#include <cstddef>

#include "tokenizer/merges.h"
#include "tokenizer/vocabulary.h"

namespace kvlathe {

// Longer tokens would make the list of cuts quadratic; Llama 3's longest has 128 bytes.
inline constexpr size_t kMaxRankedBytes = 1024;

// Two neighbours merge if their bytes together are a token, that of the lowest id first: every cut
// of a token into two tokens is a merge. Tokens are written in the alphabet of byte_alphabet.h and
// have at most kMaxRankedBytes bytes, or are no neighbours' sum.
void AddRankMerges(const Vocabulary& vocabulary, MergeTable* merges);

}  // namespace kvlathe

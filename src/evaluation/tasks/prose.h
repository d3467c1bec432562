// Filler prose is plain English sentences in the past tense about people, work, weather, food and
// animals, from templates; there are millions of distinct sentences, none with a digit.
#pragma once

#include <string>

#include "base/random.h"

namespace kvlathe {

enum class ProseStyle {
  kNatural,  // "The baker sold bread, and Anna went home."
  kPlain,    // "the baker sold bread , and anna went home ."
};

// Appends one sentence, with its full stop and no white space around it.
void AppendSentence(ProseStyle style, Random& rng, std::string& text);

// Appends n sentences, each followed by a space.
void AppendSentences(ProseStyle style, int n, Random& rng, std::string& text);

}  // namespace kvlathe

// Tasks draw from these word lists: lower case, no word twice within a list, every word free of
// white space. Written for this project.
#pragma once

#include <span>
#include <string_view>

#include "base/random.h"

namespace kvlathe {

using WordList = std::span<const std::string_view>;

WordList CommonWords();  // about 500 everyday words
WordList Adjectives();
WordList Nouns();  // concrete things of nature and house
WordList Animals();
WordList Colours();
WordList Places();  // where an animal may live and a person may go
WordList Materials();
WordList Items();       // small enough to lie in a container
WordList Containers();  // that stand in rooms
WordList Rooms();       // of buildings
WordList Buildings();
WordList Aspects();     // of an inn that a review judges
WordList GoodWords();   // that praise an aspect
WordList BadWords();    // that blame one
WordList FieldTypes();  // of the small programming language of the task "code"

inline std::string_view Pick(WordList words, Random& rng) { return words[rng.Below(words.size())]; }

}  // namespace kvlathe

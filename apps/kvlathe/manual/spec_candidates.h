// What may follow in a spec of a cache that is being typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

// A word that may stand where one is being typed, and what it is.
struct Candidate {
  std::string text;  // behind "=", "," and "/" more of the same word is to come
  std::string doc;
};

// Every candidate begins with `text`, which may break off anywhere: stages whose axes are free,
// their keys that may still be given, and values. Empty if nothing is known to follow.
std::vector<Candidate> SpecCandidates(std::string_view text);

}  // namespace kvlathe

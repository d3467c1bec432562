// The texts of a vocabulary's tokens, in an order in which many of them are looked at together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlathe {

struct TokenTexts {
  explicit TokenTexts(std::vector<std::string> tokens);

  std::vector<std::string> texts;  // of each id
  // Ids of tokens that may stand within a JSON text as they are (no quote, no backslash, no control
  // character), by their bytes; and how many bytes each has in common with the one before it.
  std::vector<int32_t> plain;
  std::vector<int32_t> n_shared;
  std::vector<int32_t> n_characters;  // of each id: characters that begin in it
  std::vector<int32_t> broken;        // plain ones that begin or end within a character
  std::vector<int32_t> other;         // those that are not plain and have a text
};

}  // namespace kvlathe

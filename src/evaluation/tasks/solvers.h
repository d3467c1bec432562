// Tests solve each task from its prompt alone, by other means than its generator, to tell whether
// the answer follows from the prompt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

struct Solution {
  std::string answer;
  // What decides the answers of the question and of the questions or examples before it: no string
  // of a train example may be one of a test example.
  std::vector<std::string> contents;
};

// Roughly what a small vocabulary makes of a text: a token per five letters of a word, one per
// digit and one in front of a number, one per mark and line end.
int CountTokens(std::string_view text);

Solution Solve(std::string_view task, const std::string& prompt);

}  // namespace kvlathe

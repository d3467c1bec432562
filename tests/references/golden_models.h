// The models of tests/golden whose logits transformers wrote.
#pragma once

#include <string>
#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

// Paths of those that tests/golden/cases compare with transformers, by name.
struct GoldenModel {
  std::string name, directory;
};
std::vector<GoldenModel> GoldenModels();

// A text and the logits behind each of its tokens.
struct GoldenText {
  std::vector<int> ids;
  Matrix logits;
};
std::vector<GoldenText> ReadGoldenTexts(const GoldenModel& model);

}  // namespace kvlathe::testing

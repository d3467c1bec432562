// `compare` and `report` measure several specs on one text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "evaluation/compare.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct ComparisonRun {
  Comparison comparison;
  std::vector<SpecModel> models;  // of the rows
  std::vector<int32_t> window;    // the first of the text
};

struct ComparisonOptions {
  std::vector<std::string> specs;
  std::string text_path;
  // A spec with resident=full has a row for each of them, or without any one at its own.
  std::vector<double> rates = {};
  bool measures_latency = true;
};

// kInvalidArgument when there are rates and no spec with resident=full.
StatusOr<ComparisonRun> RunComparison(Workspace* workspace, const ComparisonOptions& options);

}  // namespace kvlathe

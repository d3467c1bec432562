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
  // Not empty: this text, of which text_path is but the name.
  std::string text = {};
  int n_windows = 0;      // of the text, the first ones; 0: all
  int window_tokens = 0;  // 0: Workspace::window_tokens
};

// kInvalidArgument when there are rates and no spec with resident=full.
StatusOr<ComparisonRun> RunComparison(Workspace* workspace, const ComparisonOptions& options);

}  // namespace kvlathe

// Several specs measured on one text, as `compare` and `report` do.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "evaluation/compare.h"
#include "workspace.h"

namespace kvlathe {

struct ComparisonRun {
  Comparison comparison;
  std::vector<SpecModel> models;  // of the rows
  std::vector<int32_t> window;    // the first of the text
};

// A spec with resident=full has a row for each of `rates`, or without any one at its own.
// kInvalidArgument when there are rates and no such spec.
StatusOr<ComparisonRun> RunComparison(Workspace* workspace, const std::vector<std::string>& specs,
                                      const std::string& text_path,
                                      std::span<const double> rates = {});

}  // namespace kvlathe

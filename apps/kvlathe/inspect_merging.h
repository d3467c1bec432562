// `kvlathe inspect --merging` shows which positions of a text a cache merges, in numbers and
// pictures.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluation/merging/merging_report.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct MergingOptions {
  std::string text;                // --merging; empty: nothing is measured
  int n_texts = 4;                 // --merging-texts
  std::string figures;             // --figures: a directory
  std::vector<std::string> along;  // --along: models from before the one that is inspected
  std::string head;                // --head: LAYER,KV_HEAD
};
void AddMergingOptions(CLI::App* verb, MergingOptions* options);

// Of all models, the inspected one last.
struct MergingFindings {
  std::vector<ModelMerging> models;
  int head = 0;  // whose segments are shown
};
// Reads the text with the inspected model, then with those of `along`, all with the same spec, and
// writes the figures.
StatusOr<MergingFindings> InspectMerging(Workspace* workspace, const SpecModel& spec_model,
                                         const MergingOptions& options);

nlohmann::ordered_json MergingFindingsJson(const MergingFindings& findings);
void PrintMerging(const MergingFindings& findings);

}  // namespace kvlathe

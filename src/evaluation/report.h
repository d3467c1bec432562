// `kvlathe report` writes one self-contained HTML page about the caches of a model. It loads
// nothing and runs nothing: tables, inline SVG and a style that follows the reader's light or dark
// scheme.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/ranks/ranks.h"
#include "evaluation/compare.h"
#include "tuning/profile.h"

namespace kvlathe {

struct ReportMap {
  std::string title;
  std::vector<double> values;  // [n_layers * n_kv_heads]
  int n_decimals = 0;
};

// What is shown of one cache beside its row in the table.
struct ReportCache {
  std::string kv;
  std::string kv_resolved;
  std::vector<ReportMap> maps;
  std::vector<HeadSpectra> spectra;  // [n_layers * n_kv_heads]; empty: no basis, or shown before
};

struct Report {
  std::string model;
  std::vector<std::pair<std::string, std::string>> facts;  // of the model: name, value
  int n_layers = 0;
  int n_kv_heads = 0;
  Comparison comparison;
  std::string profile_path;  // of profile
  std::optional<Profile> profile;
  std::vector<ReportCache> caches;
};

// The page is also well-formed XML, but for its first line (<!DOCTYPE html>).
std::string ToHtml(const Report& report);

}  // namespace kvlathe

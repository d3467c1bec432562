// `kvlathe compare` shows several specs on one model and text, in one table and one JSON object.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/quality.h"

namespace kvlathe {

struct CompareRow {
  std::string kv;                             // as typed
  std::string kv_resolved;                    // with all defaults
  std::optional<double> rate = std::nullopt;  // in the place of the spec's, of resident=full
  Quality quality;
  std::optional<Latency> latency;                     // where it was asked for
  std::optional<double> predicted_kl = std::nullopt;  // of text like that of the calibration
};

struct Comparison {
  std::string model;
  std::string text;
  int64_t n_tokens = 0;  // scored
  std::vector<CompareRow> rows;
};

// docs/evaluation.md says what the fields mean; they are never renamed.
nlohmann::ordered_json ToJson(const Comparison& comparison);
// Returns an aligned table for people, with a line for each row.
std::string ToTable(const Comparison& comparison);
// How KL is spread over tokens and windows, with a line for each row.
std::string ToTailsTable(const Comparison& comparison);
// The KV bytes at the end of the last window, by part.
std::string ToPartsTable(const Comparison& comparison);

}  // namespace kvlathe

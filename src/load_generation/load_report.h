// A run as `vllm bench serve` prints it and writes it to a file, with what that has not.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "load_generation/load_metrics.h"

namespace kvlathe {

struct ReportOptions {
  // Of ttft, tpot, itl, e2el and client_queue_time: those that are reported.
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percents = {99};  // of each of them
  int max_concurrency = 0;              // 0: no bound
  double rate = 0;                      // requests a second; infinite: a closed loop
};

// kInvalidArgument that names what is no metric.
Status CheckPercentileMetrics(const std::vector<std::string>& names);

std::string ToText(const LoadMetrics& metrics, const ReportOptions& options);
// The keys of the file of `vllm bench serve` that come from a run.
nlohmann::json ToJson(const LoadMetrics& metrics, const ReportOptions& options);
// What --save-detailed adds: lists with a value for each request.
nlohmann::json DetailsOf(const LoadRecords& records);

}  // namespace kvlathe

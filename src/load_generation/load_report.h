// Writes a run as `vllm bench serve` prints it and saves it, with what that does not have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "load_generation/load_metrics.h"

namespace kvlathe {

struct ReportOptions {
  // Which of ttft, tpot, itl, e2el and client_queue_time are reported.
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percents = {99};  // of each of them
  int max_concurrency = 0;              // 0: no bound
  double rate = 0;                      // requests a second; infinite: a closed loop
};

// Says kInvalidArgument, and the name, of what is no metric.
Status CheckPercentileMetrics(const std::vector<std::string>& names);

std::string ToText(const LoadMetrics& metrics, const ReportOptions& options);
// Returns the members of the file of `vllm bench serve` that come from a run.
nlohmann::json ToJson(const LoadMetrics& metrics, const ReportOptions& options);
// Returns what --save-detailed adds, which is lists with a value for each request.
nlohmann::json DetailsOf(const LoadRecords& records);

}  // namespace kvlathe

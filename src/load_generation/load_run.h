// Runs a load against a server: sends requests when they are due, and writes down what comes back.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "load_generation/arrivals.h"
#include "load_generation/http_client.h"
#include "load_generation/openai_stream.h"
#include "load_generation/request_record.h"
#include "load_generation/workload.h"

namespace kvlathe {

struct LoadTarget {
  ServerAddress server;
  std::string endpoint = "/v1/completions";
  std::string api_key;  // empty: none
  RequestStyle style;
  double timeout_s = 21600;  // of a whole request
};

struct LoadOptions {
  // At a finite rate requests are due at their times, whatever the server does (an open loop). At
  // an infinite one max_concurrency clients send one request after another (a closed loop).
  ArrivalOptions arrivals;
  int64_t n_requests = 0;
  // Where this is above 0, in a closed loop, requests begin for so many seconds, and n_requests
  // bounds nothing.
  double duration_s = 0;
  int max_concurrency = 0;  // requests under way at the same time; 0: no bound
  int64_t first_index = 0;  // of the workload's requests
  std::function<void(int64_t n_ended)> on_ended;  // for a display of progress; may be empty
};

struct LoadRecords {
  std::vector<RequestRecord> requests;  // in the order in which they were due
  double duration_s = 0;                // from the start to the end of the last
  int64_t n_reconnected = 0;            // sent again because an idle connection had been closed
};

// Runs on the calling thread until the last request has ended or failed. Failures of requests are
// in their records; an error means that nothing could be sent.
StatusOr<LoadRecords> RunLoad(const LoadTarget& target, const Workload& workload,
                              const LoadOptions& options);

}  // namespace kvlathe

// The workload of `kvlathe bench serve`, from its options and what the server says of itself.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "kvlathe/bench_serve/serve_options.h"
#include "load_generation/server_questions.h"
#include "load_generation/workload.h"

namespace kvlathe {

struct BenchWorkload {
  std::unique_ptr<Workload> workload;
  double scale = 1;
  nlohmann::json description;  // for the result: dataset_name, lengths, scale, seed, prompts
};

// `seed` may differ from that of the options: the rates of a sweep get different prompts.
StatusOr<BenchWorkload> MakeBenchWorkload(const ServeBenchOptions& options,
                                          const AskedServer& server, const std::string& model,
                                          uint64_t seed);

}  // namespace kvlathe

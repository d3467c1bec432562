// The workload of `kvlathe bench serve` is made from its options and what the server
// says of itself.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "kvlathe/bench_serve/serve_options.h"
#include "load_generation/server_questions.h"
#include "load_generation/workload.h"

namespace kvlathe {

// Says how long prompts and answers of a data set are once they are scaled. Files have lengths of
// their own.
struct BenchLengths {
  LengthRange input, output;
  double scale = 1;
};
StatusOr<BenchLengths> LengthsOf(const BenchWorkloadOptions& options);
// Returns what a result says of them: dataset_name, scale, input_tokens and output_tokens.
nlohmann::json ToJson(const BenchLengths& lengths, const std::string& dataset_name);

struct BenchWorkload {
  std::unique_ptr<Workload> workload;
  double scale = 1;
  nlohmann::json description;  // for the result: dataset_name, lengths, scale, seed, prompts
};

// Makes the workload. `seed` may differ from that of the options: the rates of a sweep get
// different prompts.
StatusOr<BenchWorkload> MakeBenchWorkload(const ServeBenchOptions& options,
                                          const AskedServer& server, const std::string& model,
                                          uint64_t seed);

}  // namespace kvlathe

// `kvlathe bench model` measures prompt and generation speed of a whole model, in llama-bench's
// terms.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/status.h"
#include "model/model.h"

namespace kvlathe {

// One measurement: n_prompt tokens at once or n_gen tokens one by one (the other is 0), after
// n_depth tokens that are already in the cache, for n_parallel sequences together.
struct ModelBenchCase {
  int n_prompt = 0;
  int n_gen = 0;
  int n_depth = 0;
  int n_parallel = 1;
};

// What the machine can do at best.
struct StepLimits {
  double read_bytes_per_s = 0;
  double gemm_flops = 0;  // per second; 0: not known
};
// About 2 s and 1 GiB for that time; with products 2 s more.
StatusOr<StepLimits> MeasureStepLimits(ThreadPool* pool, Isa isa, bool with_products);
// Of a machine with memory of its own: the bytes that a large copy there reads and writes. Takes
// half of what is free of it, at most 2 GiB, for that time. kResourceExhausted.
StatusOr<StepLimits> MeasureDeviceLimits(Machine* machine);

// A share of the time of single decode steps.
struct StepShare {
  double p50 = 0;
  double p99 = 0;
};

struct ModelBenchRow {
  ModelBenchCase test;
  RankGrid grid;               // that the model is shared by
  bool tells_waiting = false;  // what the caller says of it: Backend::set_measures_waiting
  std::string kv;
  std::string schedule = "balanced";  // what the caller says of it
  double avg_ts = 0;                  // tokens per second, all sequences together
  double stddev_ts = 0;
  // Generation with limits, else 0: the bytes of weights and cache that a step reads, times steps
  // per second, over the measured read bandwidth.
  double bandwidth_share = 0;
  // Generation where products were measured too, else 0: tokens per second if weights were read, or
  // their products done, whichever takes longer, and then the cache read, with nothing else to do.
  double limit_ts = 0;
  ForwardProfile profile;    // seconds of the counted runs, by part; with ranks, of this one
  StepShare rotate, plan;    // of generation, over the steps of all counted runs; else 0
  double seconds = 0;        // of the counted runs
  int64_t weight_bytes = 0;  // of the matrices that a step reads
  int64_t kv_bytes = 0;      // of all sequences at the end of a run
  // Where positions merge: of how many an entry is, over all heads, at the end of a run; else 0.
  double positions_per_entry = 0;
  // Where the model decides what merges, both go by the share of its positions that each head has
  // kept in this run.
  int64_t n_fit = 0;           // sequences like these that the budget is sure to hold
  int64_t longest_prompt = 0;  // of one sequence that has the budget alone, within the context
};

// The depth is filled with random rows, not computed: the same bytes and the same work for what
// follows, without hours of prefill. It is computed, from random tokens, only where positions
// merge, because there the model decides how many entries there are, and where ranks share the
// model, because each fills its own. One sequence reads it then, and all others are copies of it.
// One run warms up, n_repetitions count.
StatusOr<ModelBenchRow> BenchModel(Model* model, const std::string& kv, const ModelBenchCase& test,
                                   int n_repetitions, int64_t kv_budget_bytes,
                                   const std::optional<StepLimits>& limits = std::nullopt);

// device: what the rows were measured on (Workspace::device_name).
nlohmann::ordered_json ToJson(const std::vector<ModelBenchRow>& rows, const std::string& device);
// llama-bench's Markdown columns; the test is named pp512, tg128, pp512 @ d512, and has the
// schedule behind it where it is not the default.
std::string ToMarkdown(const std::vector<ModelBenchRow>& rows, const std::string& model_name,
                       int n_threads);

}  // namespace kvlathe

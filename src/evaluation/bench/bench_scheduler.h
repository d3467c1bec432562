// `kvlathe bench scheduler` measures what the engine itself adds to the time of a decode step, and
// how soon an idle engine begins with a request.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "model/model.h"

namespace kvlathe {

struct SchedulerBenchOptions {
  int n_sequences = 16;    // that decode together
  int n_prompt = 256;      // tokens of each
  int n_steps = 64;        // decode steps that count
  int n_idle_starts = 32;  // requests to an idle engine, one after another
};

// Medians over steps or starts, but for the 99th percentile and the longest.
struct SchedulerBenchReport {
  SchedulerBenchOptions options;
  double step_ms = 0;  // a decode step, whole
  double scheduler_us =
      0;  // of it: admission, room in caches, the batch, and what follows the tokens
  double scheduler_p99_us = 0;
  double sampling_us = 0;  // of it: greedy choice of the tokens, and their callbacks
  double first_step_us =
      0;  // from Submit on one thread to the first computation on the one that steps
  double longest_first_step_us = 0;

  double scheduler_share() const { return scheduler_us / (step_ms * 1e3); }
};

// The model decodes greedily. Prompts are random token ids, so what it generates means nothing.
// Errors are those of Engine::Submit and of the steps.
StatusOr<SchedulerBenchReport> BenchScheduler(Model* model, const SchedulerBenchOptions& options,
                                              int64_t kv_budget_bytes);

// {"sequences","prompt_tokens","steps","step_ms","scheduler_us","scheduler_p99_us",
// "scheduler_share","sampling_us","first_step_us","longest_first_step_us"}
nlohmann::ordered_json ToJson(const SchedulerBenchReport& report);
std::string ToText(const SchedulerBenchReport& report);

}  // namespace kvlathe

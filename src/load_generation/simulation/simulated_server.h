// A server without a model and without a clock, to see what a scheduler does to a load. The engine
// and the caches are those of a real server; what a step takes follows from what is in it, and time
// passes by that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/threads.h"
#include "engine/engine_observer.h"
#include "load_generation/load_run.h"
#include "load_generation/workload.h"
#include "model/model.h"
#include "plan/plan_source.h"
#include "plan/planner.h"

namespace kvlathe {

// What a step takes, in milliseconds. The values are about those of SmolLM2 (135M) with `none` on
// two cores with AVX-512.
struct StepCosts {
  double step = 4;                  // of each step: the weights are read
  double prompt_token = 0.33;       // of each token of a prompt
  double decode_token = 0.6;        // of each sequence that decodes
  double prompt_position = 6e-5;    // of each position that a token of a prompt attends to
  double decode_position = 5.8e-4;  // of each position that a token that is decoded attends to

  double SecondsOf(const StepWork& work) const;
};

struct SimulatedServerOptions {
  StepCosts costs;
  int64_t kv_bytes = 0;  // of KV memory
  int max_batch_tokens = 512;
  int max_sequences = 16;
};

// Caches have the shape of two layers with three KV heads of 64 dimensions, whatever is simulated:
// how much smaller a cache is than another is nearly the same in all models.
class SimulatedServer {
 public:
  // kInvalidArgument for a spec that is none, or that such a model cannot have.
  static StatusOr<std::unique_ptr<SimulatedServer>> Create(const std::string& spec);
  ~SimulatedServer();

  // Serves a load, as RunLoad has it of a real server, from its first request to the end of its
  // last; LoadOptions::duration_s is not read. kInvalidArgument or kResourceExhausted where a
  // request can never run.
  StatusOr<LoadRecords> Serve(const Workload& workload, const LoadOptions& load,
                              const SimulatedServerOptions& options);
  // Of KV memory for a position, in the long run and when all is sealed that will be.
  int64_t bytes_per_token() const;

 private:
  SimulatedServer();

  ThreadPool threads_{1};
  std::unique_ptr<PlanSource> source_;
  std::unique_ptr<CachePlanner> planner_;
  std::unique_ptr<Model> model_;
};

// What prompts of a simulation are made of.
inline constexpr int kSimulatedVocabulary = 128;
inline constexpr int kSimulatedContext = 1 << 17;

}  // namespace kvlathe

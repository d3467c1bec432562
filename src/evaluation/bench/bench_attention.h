// `kvlathe bench attention` measures attention on compressed blocks against what the machine
// allows, without a model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "base/status.h"
#include "kv/cache_layout.h"

namespace kvlathe {

enum class BenchPhase { kDecode, kPrefill };
std::string_view PhaseName(BenchPhase phase);

// A cache by the share of K and V elements that it removes and how the rest is sealed. Rate 0 keeps
// full ranks; otherwise the ranks of all KV heads of all layers are drawn with coefficient of
// variation 0.3, multiples of 16, mean (1 - rate) * head_dim, whatever the basis. Sealed, the
// context is a prompt that has just been read, and its codes, scales and repairs are random. Under
// retention the context is what a head holds, and its entries get the votes of the step.
struct BenchCache {
  std::string kv;  // as typed
  double rate = 0;
  std::optional<SealPlan> seal;
  std::optional<RetentionPlan> retention;
  double ratio = 0;  // where the plan splits bits: of 16-bit rows to codes
  // Latent keys become keys in scratch (cpu/attention/latents.h). What that takes is no part of the
  // row's FLOPs.
  Keys keys;
  bool has_uniform_ranks = false;  // one rank pair for all heads in place of drawn ones
  // The cache of a model, whose layers are taken in turn, with their ranks, bits and seal plan.
  // Keys are its keys too. Nothing is drawn then, and rate, ratio and has_uniform_ranks mean
  // nothing; sinks and windows are left out.
  std::optional<CacheLayout> of_model;

  bool is_none() const {
    return kv == "none" ||
           (rate == 0 && !seal.has_value() && !retention.has_value() && !of_model.has_value());
  }
};

struct AttentionBenchOptions {
  std::vector<BenchPhase> phases = {BenchPhase::kDecode, BenchPhase::kPrefill};
  std::vector<int> contexts = {2048, 8192};
  // The first uncompressed one is moved to the front, or added there: speedup_vs_none needs it.
  std::vector<BenchCache> specs = {{"none"}, {"fdc(rate=0.5)", 0.5}};
  int n_heads = 32;
  int n_kv_heads = 8;
  int head_dim = 128;
  // Prefill computes the last min(prefill_tokens, context) tokens of the context, as a chunk would.
  int prefill_tokens = 2048;
  // Layers of a pass of decode, of a model's evenly; 0: as many as read 1 GiB. A few of short
  // contexts stay in the caches of the processor: then times are those of the work alone, and the
  // limit is that of products.
  int n_layers = 0;
  int n_threads = 1;
  Isa isa = Isa::kScalar;
  // Rows of each: those of kPlanSchedules (bench_plan.h). What was published is shared out by the
  // cost model, once, and has the kernels that all have.
  std::vector<std::string> schedules = {"balanced"};
  // Heads hold from context / length_ratio to context entries, drawn evenly on a logarithmic scale.
  double length_ratio = 1;
  int n_repetitions = 9;  // the best counts, of the rows and of the limits
  // Blocks anywhere in memory, as a long history of sequences may leave them; otherwise the blocks
  // of a head follow each other, as the pool places those of a prompt.
  bool scattered_blocks = false;
  uint64_t seed = 1;
};

// One layer of one sequence: `decode` one token, `prefill` one chunk.
struct AttentionBenchRow {
  BenchPhase phase = BenchPhase::kDecode;
  int context = 0;
  int n_tokens = 1;  // query tokens
  std::string kv;
  std::string schedule = "balanced";
  double time_us = 0;
  // Rows, codes, scales and repairs that must be read, without padding.
  int64_t bytes = 0;
  double flops = 0;  // 2 (width of a key + rank_v) per visible (query, key) pair
  // Distinct K and V bytes between two uses of the same row. Unless their number is given, decode
  // goes over so many layers that this is at least 1 GiB, and no cache of the processor holds it.
  int64_t working_set_bytes = 0;
  double speedup_vs_none = 1;
  // The longer of bytes / read bandwidth and FLOPs / GEMM peak, over the time.
  double fraction_of_limit = 0;
};

struct AttentionBenchReport {
  std::string device;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_threads = 0;
  uint64_t seed = 0;
  bool is_of_model = false;       // ranks and bits are a model's and not drawn
  double read_gb_per_s = 0;       // the best of a pass before every repetition
  double gemm_tflop_per_s = 0;    // the better of before and after
  double integer_tdot_per_s = 0;  // products of bytes, which bound rows that are codes
  std::vector<AttentionBenchRow> rows;
};

// Repetitions go over the read limit and all rows in turn, so that a machine whose speed drifts
// gives all of them the same chances.
// Takes at most 3 GiB. kInvalidArgument: options that make no sense or need more memory. kInternal:
// a row was faster than 1.05 times the limits, so one of the measurements is wrong.
StatusOr<AttentionBenchReport> RunAttentionBench(const AttentionBenchOptions& options);

// {"device","threads","read_gb_per_s","gemm_tflop_per_s","integer_tdot_per_s","seed","ranks","rows":[{"phase","context",
// "n_heads","n_kv_heads","head_dim","kv","schedule","time_us","bytes","working_set_bytes","speedup_vs_none",
// "fraction_of_limit","query_tokens"}]}
nlohmann::ordered_json ToJson(const AttentionBenchReport& report);
// The same as a table to read.
std::string ToMarkdown(const AttentionBenchReport& report);

}  // namespace kvlathe

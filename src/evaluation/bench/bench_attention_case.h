// A case is one row of `bench attention` as memory and jobs: a cache drawn from a seed, with its
// blocks, run records and votes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/memory/cpu_device.h"
#include "cpu/memory/host_places.h"
#include "evaluation/bench/bench_attention.h"
#include "kv/seal/seal_schedule.h"
#include "tensor/buffer.h"

namespace kvlathe {

// What attention computes with.
struct BenchMachine {
  CpuDevice device;  // knows queries, outputs and angles
  CpuResidents residents{&device};
};

// One row of the report while it is measured.
struct AttentionCase {
  std::shared_ptr<BenchMachine> machine;  // has its codebooks and maps
  AttentionBenchRow row;
  int n_layers = 1;
  CacheLayout layout;
  std::vector<int> lengths;           // [n_layers * n_kv_heads] entries
  std::vector<RunExtent> extents;     // of the sealed runs, the same for every head
  std::unique_ptr<CpuDevice> device;  // knows the memory of blocks, records and votes
  std::vector<ObjectId> blocks;       // [n_layers * n_kv_heads, blocks of the context] or null
  Buffer records;                     // of all runs
  std::vector<SealedRun> runs;        // [n_layers * n_kv_heads, n_runs]
  std::vector<std::byte> counts;      // of exact entries, of all sealed blocks in order
  // Of a format that has them, by layer.
  std::vector<Resident<CodebooksId>> codebooks;
  std::vector<float> cos, sin;  // by which all heads turn their keys, where they do
  std::vector<float> turning_mean, mean_angles;  // of all heads, of keys in frames (FrameIds)
  Keys keys;
  std::vector<Resident<LatentMapId>> maps;  // [n_layers * n_kv_heads], of latent keys
  std::vector<Weight> frame_queries;        // [n_layers * KV heads of the model], of keys in frames
  std::vector<WeightId> frame_maps;         // the ids of these
  // What makes the model's rows of blocks (RebuildIds): the weights, and ids by KV head of the
  // model.
  std::vector<Weight> rebuilders;
  std::vector<WeightId> rebuilt_keys, rebuilt_values, rebuilt_outputs;
  std::optional<RetentionPlan> retention;
  Buffer entries;  // positions and votes of the heads of a layer
  ScoreNoise noise;
  std::vector<HeadJob> jobs;  // [n_layers * n_kv_heads]
  // [n_layers], where the schedule is none of the planner's; made in the first pass.
  std::vector<AttentionPlan> published_plans;
  std::vector<double> pass_seconds;
};

// The shapes that a cache has whose heads are so many of the model each.
AttentionBenchOptions JoinedShapes(AttentionBenchOptions options, int heads_per_map);

// Shapes and what they cost; layers for decode until a pass reads kReadWorkingSetBytes.
AttentionCase MakeCase(const AttentionBenchOptions& options, BenchPhase phase, int context,
                       const BenchCache& spec);

// Blocks of all layers, padded as in memory.
int64_t AllBlockBytes(const AttentionCase& c);

// What all cases share: AllBlockBytes of the largest of them, and rows for its queries.
struct BenchMemory {
  Buffer blocks, q, out;
  std::shared_ptr<BenchMachine> machine = std::make_shared<BenchMachine>();
  HostPlaces places{&machine->device};
};

// Blocks, records, jobs and votes of the case, in memory that it does not own.
Status BuildCase(const AttentionBenchOptions& options, BenchMemory* memory, ThreadPool* pool,
                 AttentionCase* c);

// Puts the counts of exact entries into the case's blocks, where other cases have been since.
void PlaceCounts(const AttentionCase& c, BenchMemory* memory);

// Standard normal Bf16 values, different everywhere: blocks of such rows are valid in any layout.
void FillNormal(ThreadPool* pool, uint64_t seed, int64_t n_bytes, std::byte* bytes);

}  // namespace kvlathe

#include "evaluation/bench_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>

#include "attention/attention.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/threads.h"
#include "base/units.h"
#include "evaluation/random_splits.h"
#include "kernels/cpu/block_layout.h"
#include "kernels/cpu/machine_limits.h"
#include "kv/quantizer/codebooks.h"
#include "kv/seal_schedule.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr double kMaxFraction = 1.05;
constexpr double kRankVariation = 0.3;
// With the 1 GiB that measuring read bandwidth takes, 3 GiB.
constexpr int64_t kMaxBlockBytes = int64_t{7} << 28;
constexpr int64_t kMinLayerBytes = int64_t{128} << 10;
constexpr int64_t kMaxQueryBytes = int64_t{1} << 28;

std::string_view PhaseName(BenchPhase phase) {
  return phase == BenchPhase::kDecode ? "decode" : "prefill";
}

std::string DeviceName(Isa isa) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name = "CPU";
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    name = line.substr(colon + 2);
    break;
  }
  return fmt::format("{} ({})", name, IsaName(isa));
}

// Standard normal Bf16 values, different everywhere: blocks of such rows are valid in any layout.
// Picks from a table of 2^16 normals, four to a random word: a GiB in a second.
void FillNormal(ThreadPool* pool, uint64_t seed, int64_t n_bytes, std::byte* bytes) {
  std::vector<uint16_t> table(1 << 16);
  Random random(seed);
  for (uint16_t& x : table) x = ToBf16(static_cast<float>(random.Normal())).bits;
  const int64_t n_words = n_bytes / 8;
  pool->Run([&](int worker_id) {
    const Range share = ShareOf(n_words, 1, worker_id, pool->n_workers());
    for (int64_t i = share.begin; i < share.end; ++i) {
      const uint64_t bits = MixBits(seed + i);
      const uint16_t values[4] = {table[bits & 0xffff], table[bits >> 16 & 0xffff],
                                  table[bits >> 32 & 0xffff], table[bits >> 48]};
      std::memcpy(bytes + 8 * i, values, sizeof(values));
    }
  });
}

// One row of the report while it is measured.
struct Case {
  AttentionBenchRow row;
  int n_layers = 1;
  CacheLayout layout;
  std::vector<int> lengths;              // [n_layers * n_kv_heads] entries
  std::vector<RunExtent> extents;        // of the sealed runs, the same for every head
  std::vector<const std::byte*> blocks;  // [n_layers * n_kv_heads, blocks of the context] or null
  Buffer records;                        // of all runs
  std::vector<PackedRun> runs;           // [n_layers * n_kv_heads, n_runs]
  ModelCodebooks codebooks;              // of a format that has them
  std::vector<float> cos, sin;           // by which all heads turn their keys, where they do
  std::optional<RetentionPlan> retention;
  Buffer entries;  // positions and votes of the heads of a layer
  ScoreNoise noise;
  std::vector<HeadJob> jobs;  // [n_layers * n_kv_heads]
  std::vector<double> pass_seconds;
};

int64_t BlocksOf(int context) { return (context + kBlockSize - 1) / kBlockSize; }

int64_t SealedBlocksOf(const Case& c) {
  return c.extents.empty() ? 0 : c.extents.back().first_block + c.extents.back().n_blocks;
}

// Calls f(run index, shape of the run in this head) for every run of head i of all layers.
template <typename F>
void ForEachRun(const Case& c, size_t i, const F& f) {
  const int n_kv_heads = c.layout.n_kv_heads, head = static_cast<int>(i);
  for (size_t r = 0; r < c.extents.size(); ++r) {
    f(r, PackedShapeOf(c.layout, head / n_kv_heads, head % n_kv_heads, c.extents[r]));
  }
}

// Of one head, padded as in memory.
int64_t BlockBytesOfHead(const Case& c, size_t i) {
  int64_t n_bytes = (BlocksOf(c.lengths[i]) - SealedBlocksOf(c)) * BlockBytes(c.layout.shapes[i]);
  ForEachRun(c, i, [&](size_t, const PackedShape& shape) {
    n_bytes += shape.n_blocks * PackedBlockObjectBytes(shape);
  });
  return n_bytes;
}

int64_t AllBlockBytes(const Case& c) {
  int64_t n_bytes = 0;
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) n_bytes += BlockBytesOfHead(c, i);
  return n_bytes;
}

// What a pass over all layers must read.
int64_t PayloadBytes(const Case& c) {
  int64_t n_bytes = 0;
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) {
    const BlockShape& shape = c.layout.shapes[i];
    const int64_t n_plain = c.lengths[i] - SealedBlocksOf(c) * kBlockSize;
    n_bytes += n_plain * (shape.rank_k + shape.rank_v) * SizeOf(shape.row_type);
    ForEachRun(c, i, [&](size_t, const PackedShape& run) {
      n_bytes += run.n_blocks * PackedBlockBytes(run) + RunRecordBytes(run);
      if (i % c.layout.n_kv_heads == 0) n_bytes += LayerRecordBytes(run);
    });
  }
  return n_bytes;
}

std::vector<int> DrawLengths(const AttentionBenchOptions& options, int context, size_t n) {
  Random random(options.seed, 2);
  std::vector<int> lengths(n);
  for (int& length : lengths) {
    const double shrink = std::pow(options.length_ratio, random.Uniform());
    length = std::max(1, static_cast<int>(context / shrink));
  }
  return lengths;
}

CacheLayout DrawLayout(const AttentionBenchOptions& options, const BenchCache& spec, int n_layers) {
  CacheLayout layout{n_layers, options.n_kv_heads, options.head_dim, 0, {}, 0, spec.seal};
  const int n_pairs = n_layers * options.n_kv_heads;
  if (spec.seal.has_value() && spec.seal->format.splits_bits) {
    for (const HeadRanks& r : DrawSplits(n_pairs, options.head_dim, spec.ratio, options.seed)) {
      layout.shapes.push_back({r.rank_k, r.rank_v, DType::kBf16, r.k_bits, r.v_bits});
    }
    return layout;
  }
  const std::vector<int> ranks = DrawRanks(n_pairs, options.head_dim, spec.rate, options.seed);
  for (int i = 0; i < n_pairs; ++i) {
    layout.shapes.push_back({ranks[2 * i], ranks[2 * i + 1], DType::kBf16});
  }
  return layout;
}

// Shapes and what they cost; layers for decode until a pass reads kReadWorkingSetBytes.
Case MakeCase(const AttentionBenchOptions& options, BenchPhase phase, int context,
              const BenchCache& spec) {
  Case c;
  c.row.phase = phase;
  c.row.context = context;
  c.row.kv = spec.kv;
  const bool is_decode = phase == BenchPhase::kDecode;
  c.row.n_tokens = is_decode ? 1 : std::min(context, options.prefill_tokens);
  c.layout = DrawLayout(options, spec, 1);
  c.lengths = DrawLengths(options, context, c.layout.shapes.size());
  c.retention = spec.retention;
  // A chunk of a prompt sees the runs before it sealed and itself in 16 bits.
  c.extents = RunsOf(c.layout, is_decode ? context : context - c.row.n_tokens, context);
  if (is_decode) {
    // Of one layer first; the ranks of more have the same mean.
    c.n_layers = static_cast<int>((kReadWorkingSetBytes + PayloadBytes(c) - 1) / PayloadBytes(c));
    c.layout = DrawLayout(options, spec, c.n_layers);
    c.lengths = DrawLengths(options, context, c.layout.shapes.size());
  }
  c.row.working_set_bytes = PayloadBytes(c);
  c.row.bytes = c.row.working_set_bytes / c.n_layers;
  const int group = options.n_heads / options.n_kv_heads;
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) {
    const BlockShape& shape = c.layout.shapes[i];
    const double n = std::min(c.row.n_tokens, c.lengths[i]);
    const double n_visible = n * (c.lengths[i] - n) + n * (n + 1) / 2;
    c.row.flops += 2.0 * (shape.rank_k + shape.rank_v) / c.n_layers * n_visible * group;
  }
  return c;
}

void PlaceBlocks(const std::byte* memory, const AttentionBenchOptions& options, Case* c) {
  const int64_t n_head_blocks = BlocksOf(c->row.context);
  std::vector<int64_t> order(n_head_blocks * c->layout.shapes.size());
  std::iota(order.begin(), order.end(), 0);
  if (options.scattered_blocks) {
    Random random(options.seed, 1);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  }
  // Of one head, by block.
  std::vector<int64_t> sizes(order.size());
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    int64_t* of_head = sizes.data() + i * n_head_blocks;
    std::fill_n(of_head, BlocksOf(c->lengths[i]), BlockBytes(c->layout.shapes[i]));
    ForEachRun(*c, i, [&](size_t r, const PackedShape& shape) {
      std::fill_n(of_head + c->extents[r].first_block, shape.n_blocks,
                  PackedBlockObjectBytes(shape));
    });
  }
  c->blocks.resize(order.size());
  for (int64_t i : order) {
    if (sizes[i] == 0) continue;
    c->blocks[i] = memory;
    memory += sizes[i];
  }
}

// Exact entries spread evenly over blocks: `ends` has n_lists counts that add up to n_entries.
void FillSparse(int64_t n_entries, int64_t n_lists, int rank, uint64_t seed, std::byte* ends,
                std::byte* entries) {
  for (int64_t i = 0; i < n_lists; ++i) {
    const uint32_t end = static_cast<uint32_t>(n_entries * (i + 1) / n_lists);
    std::memcpy(ends + 4 * i, &end, sizeof(end));
  }
  for (int64_t i = 0; i < n_entries; ++i) {
    const uint64_t bits = MixBits(seed + i);
    const SparseEntry entry{SparsePlace(bits & 63, static_cast<int>((bits >> 6) % rank)), 0x3f80};
    std::memcpy(entries + i * sizeof(entry), &entry, sizeof(entry));
  }
}

// Records of every run, random where any number will do.
Status MakeRecords(const AttentionBenchOptions& options, ThreadPool* pool, Case* c) {
  if (c->extents.empty()) return OkStatus();
  int64_t n_bytes = 0;
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    ForEachRun(*c, i, [&](size_t, const PackedShape& shape) {
      n_bytes += RunRecordObjectBytes(shape) + LayerRecordObjectBytes(shape);
    });
  }
  KVL_ASSIGN_OR_RETURN(c->records, Buffer::Allocate(std::max<int64_t>(n_bytes, 64), "records"));
  FillNormal(pool, options.seed + 1, n_bytes, c->records.data());
  std::byte* next = c->records.data();
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    const size_t first_head = i - i % c->layout.n_kv_heads;
    ForEachRun(*c, i, [&](size_t r, const PackedShape& s) {
      PackedRun run{.first_block = static_cast<int>(c->extents[r].first_block),
                    .n_blocks = s.n_blocks,
                    .record = next};
      FillSparse(s.n_key_entries(), s.n_key_entries() > 0 ? s.n_blocks : 0, s.rank_k, i,
                 next + KeySparseEndsOffset(s), next + KeySparseOffset(s));
      next += RunRecordObjectBytes(s);
      if (i == first_head) {
        run.layer_record = next;
        FillSparse(int64_t{2} * s.value_outliers() * s.n_tokens(),
                   s.value_outliers() > 0 ? int64_t{s.n_blocks} * s.n_kv_heads : 0, 16, i,
                   next + ValueSparseEndsOffset(s), next + ValueSparseOffset(s));
        next += LayerRecordObjectBytes(s);
      } else {
        run.layer_record = c->runs[first_head * c->extents.size() + r].layer_record;
      }
      c->runs.push_back(run);
    });
  }
  const PackedFormat& format = c->layout.seal->format;
  if (format.k.has_codebook) c->codebooks = EvenCodebooks(c->layout);
  if (format.keys_before_rope) {
    const int64_t n = BlocksOf(c->row.context) * kBlockSize * options.head_dim / 2;
    c->cos.assign(n, 1.0f);
    c->sin.assign(n, 0.0f);
  }
  return OkStatus();
}

// Votes go to tables that the layers share.
Status AddVotes(const AttentionBenchOptions& options, Case* c) {
  if (!c->retention.has_value() || !c->retention->HasVotes()) return OkStatus();
  const int64_t table_bytes = BlocksOf(c->row.context) * EntryTable::BlockBytes(true);
  KVL_ASSIGN_OR_RETURN(c->entries,
                       Buffer::Allocate(options.n_kv_heads * table_bytes, "entry tables"));
  std::memset(c->entries.data(), 0, c->entries.n_bytes());
  for (size_t i = 0; i < c->jobs.size(); ++i) {
    HeadJob& job = c->jobs[i];
    job.scored = EntryTable(c->entries.data() + i % options.n_kv_heads * table_bytes, true);
    for (int e = 0; e < job.n_entries; ++e) job.scored.position(e) = e;
    switch (c->retention->votes) {
      case RetentionPlan::Votes::kNone:
      case RetentionPlan::Votes::kAll:
        break;
      case RetentionPlan::Votes::kLast:
        job.first_scored = job.n_tokens - 1;
        break;
      case RetentionPlan::Votes::kPromptTail:  // of a prompt that ends here
        job.first_scored = c->row.phase == BenchPhase::kDecode
                               ? job.n_tokens
                               : std::max(0, job.n_tokens - c->retention->n_recent);
        break;
    }
    if (c->retention->is_noisy) job.noise = &c->noise;
  }
  return OkStatus();
}

// q and out are shared by all layers and all cases.
void MakeJobs(const AttentionBenchOptions& options, const Buffer& q, Buffer* out, Case* c) {
  const int group = options.n_heads / options.n_kv_heads;
  const int64_t n_tokens = c->row.n_tokens, n_rows = n_tokens * group;
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    const int64_t head = static_cast<int64_t>(i) % options.n_kv_heads;
    const BlockShape& shape = c->layout.shapes[i];
    c->jobs.push_back({.shape = shape,
                       .head_dim = options.head_dim,
                       .gqa_group = group,
                       .n_tokens = c->row.n_tokens,
                       .q = q.as<Bf16>() + head * n_rows * options.head_dim,
                       .q_stride = shape.rank_k,
                       .blocks = c->blocks.data() + i * BlocksOf(c->row.context),
                       .n_entries = c->lengths[i],
                       .first_visible = c->lengths[i] - c->row.n_tokens + 1,
                       .out = out->as<Bf16>() + head * n_rows * options.head_dim,
                       .out_stride = int64_t{group} * shape.rank_v});
    if (c->extents.empty()) continue;
    PackedHead& packed = c->jobs.back().packed;
    packed = {.format = c->layout.seal->format,
              .kv_head_idx = static_cast<int>(head),
              .n_kv_heads = options.n_kv_heads,
              .runs = c->runs.data() + i * c->extents.size(),
              .n_runs = static_cast<int>(c->extents.size())};
    if (!c->codebooks.empty()) packed.codebooks = &c->codebooks[i / options.n_kv_heads];
    if (!c->cos.empty()) packed.rotation = {c->cos.data(), c->sin.data(), options.head_dim / 2};
    for (int g = 0; g < options.n_kv_heads; ++g) {
      packed.layer_rank_v += c->layout.shapes[i - head + g].rank_v;
    }
  }
}

StatusOr<double> TimePass(const AttentionBenchOptions& options, const Case& c,
                          Attention* attention) {
  const float sm_scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim));
  const Stopwatch watch;
  for (int l = 0; l < c.n_layers; ++l) {
    KVL_RETURN_IF_ERROR(attention->Run(
        {c.jobs.data() + l * options.n_kv_heads, static_cast<size_t>(options.n_kv_heads)}, sm_scale,
        c.row.schedule));
  }
  return watch.Seconds();
}

Status CheckOptions(const AttentionBenchOptions& o) {
  const auto refuse = [](const char* what, auto value, const char* instead) {
    return Error(StatusCode::kInvalidArgument, "bench attention: {} {}: {}", what, value, instead);
  };
  if (o.n_kv_heads < 1) return refuse("n_kv_heads", o.n_kv_heads, "give at least 1");
  if (o.n_heads < 1 || o.n_heads % o.n_kv_heads != 0) {
    return refuse("n_heads", o.n_heads, "give a multiple of n_kv_heads");
  }
  if (o.head_dim < 16 || o.head_dim > 256 || o.head_dim % 16 != 0) {
    return refuse("head_dim", o.head_dim, "give a multiple of 16 from 16 to 256");
  }
  if (o.n_threads < 1) return refuse("threads", o.n_threads, "give at least 1");
  if (o.n_repetitions < 1) return refuse("repetitions", o.n_repetitions, "give at least 1");
  if (o.prefill_tokens < 1) return refuse("prefill tokens", o.prefill_tokens, "give at least 1");
  if (!(o.length_ratio >= 1 && o.length_ratio <= 1000)) {
    return refuse("length ratio", o.length_ratio, "give a number from 1 to 1000");
  }
  for (const BenchCache& spec : o.specs) {
    if (o.length_ratio > 1 && spec.seal.has_value()) {
      return refuse("kv", spec.kv, "sealed heads are equally long; leave the length ratio out");
    }
  }
  for (int context : o.contexts) {
    if (context < 1) return refuse("context", context, "give at least 1");
  }
  for (const BenchCache& spec : o.specs) {
    if (!(spec.rate >= 0 && spec.rate < 1)) {
      return refuse("rate", spec.rate, "give a number from 0 to less than 1");
    }
  }
  return OkStatus();
}

StatusOr<std::vector<Case>> MakeCases(const AttentionBenchOptions& options) {
  std::vector<BenchCache> specs = options.specs;
  const auto none = std::find_if(specs.begin(), specs.end(), std::mem_fn(&BenchCache::is_none));
  if (none == specs.end()) {
    specs.insert(specs.begin(), {"none"});
  } else {
    std::rotate(specs.begin(), none, none + 1);
  }
  std::vector<Case> cases;
  for (BenchPhase phase : options.phases) {
    for (int context : options.contexts) {
      // Before anything is built for it.
      const int64_t layer_bytes = int64_t{4} * options.head_dim * options.n_kv_heads * context;
      const int64_t query_bytes = int64_t{2} * options.head_dim * options.n_heads *
                                  std::min(context, options.prefill_tokens);
      if (layer_bytes < kMinLayerBytes || layer_bytes > kMaxBlockBytes / 2 ||
          query_bytes > kMaxQueryBytes) {
        return Error(
            StatusCode::kInvalidArgument,
            "bench attention: context {} with {} KV heads of {} takes {} a layer and {} of "
            "queries; choose a layer of {} to {} and queries of at most {}",
            context, options.n_kv_heads, options.head_dim, FormatBytes(layer_bytes),
            FormatBytes(query_bytes), FormatBytes(kMinLayerBytes), FormatBytes(kMaxBlockBytes / 2),
            FormatBytes(kMaxQueryBytes));
      }
      for (size_t i = 0; i < specs.size() * options.schedules.size(); ++i) {
        const BenchCache& spec = specs[i / options.schedules.size()];
        cases.push_back(MakeCase(options, phase, context, spec));
        cases.back().row.schedule = options.schedules[i % options.schedules.size()];
        // Short contexts may be mostly padding.
        if (AllBlockBytes(cases.back()) <= kMaxBlockBytes) continue;
        return Error(StatusCode::kInvalidArgument,
                     "bench attention: context {} with {} takes {} of blocks, more than {}; choose "
                     "a context that fills its blocks of {} entries",
                     context, spec.kv, FormatBytes(AllBlockBytes(cases.back())),
                     FormatBytes(kMaxBlockBytes), kBlockSize);
      }
    }
  }
  return cases;
}

Status MeasureGemmLimit(ThreadPool* pool, Isa isa, AttentionBenchReport* report) {
  KVL_ASSIGN_OR_RETURN(const double gemm_flops, MeasureGemmPeak(*pool, isa));
  report->gemm_tflop_per_s = std::max(report->gemm_tflop_per_s, gemm_flops * 1e-12);
  return OkStatus();
}

// Also the read limit, over the memory that holds the blocks.
Status MeasureCases(const AttentionBenchOptions& options, ThreadPool* pool,
                    AttentionBenchReport* report, std::vector<Case>* cases) {
  int64_t block_bytes = kReadWorkingSetBytes, n_query_tokens = 1;
  for (const Case& c : *cases) {
    block_bytes = std::max(block_bytes, AllBlockBytes(c));
    n_query_tokens = std::max<int64_t>(n_query_tokens, c.row.n_tokens);
  }
  const int64_t query_bytes = 2 * n_query_tokens * options.n_heads * options.head_dim;
  KVL_ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(block_bytes, "benchmark blocks"));
  KVL_ASSIGN_OR_RETURN(Buffer q, Buffer::Allocate(query_bytes, "benchmark queries"));
  KVL_ASSIGN_OR_RETURN(Buffer out, Buffer::Allocate(query_bytes, "benchmark outputs"));
  FillNormal(pool, options.seed, block_bytes, memory.data());
  FillNormal(pool, ~options.seed, query_bytes, q.data());
  for (Case& c : *cases) {
    PlaceBlocks(memory.data(), options, &c);
    KVL_RETURN_IF_ERROR(MakeRecords(options, pool, &c));
    MakeJobs(options, q, &out, &c);
    KVL_RETURN_IF_ERROR(AddVotes(options, &c));
  }
  Attention attention(pool, options.isa);
  for (int repetition = -1; repetition < options.n_repetitions; ++repetition) {
    const double read_seconds =
        ReadPassSeconds(*pool, options.isa, memory.data(), kReadWorkingSetBytes);
    report->read_gb_per_s =
        std::max(report->read_gb_per_s, kReadWorkingSetBytes / read_seconds * 1e-9);
    for (Case& c : *cases) {
      KVL_ASSIGN_OR_RETURN(const double seconds, TimePass(options, c, &attention));
      if (repetition >= 0) c.pass_seconds.push_back(seconds);  // the first pass warms up
    }
  }
  return OkStatus();
}

// Times, speedups and fractions, once all cases and both limits are measured.
Status Judge(const std::vector<Case>& cases, AttentionBenchReport* report) {
  double none_us = 0;  // of the same phase and context
  BenchPhase phase = BenchPhase::kDecode;
  int context = 0;
  for (const Case& c : cases) {
    AttentionBenchRow row = c.row;
    const double seconds =
        *std::min_element(c.pass_seconds.begin(), c.pass_seconds.end()) / c.n_layers;
    row.time_us = seconds * 1e6;
    if (row.phase != phase || row.context != context) {
      phase = row.phase;
      context = row.context;
      none_us = row.time_us;  // `none` is the first spec
    }
    row.speedup_vs_none = none_us / row.time_us;
    const double read_seconds = static_cast<double>(row.bytes) / (report->read_gb_per_s * 1e9);
    const double compute_seconds = row.flops / (report->gemm_tflop_per_s * 1e12);
    row.fraction_of_limit = std::max(read_seconds, compute_seconds) / seconds;
    if (row.fraction_of_limit > kMaxFraction) {
      return Error(
          StatusCode::kInternal,
          "bench attention: {} at context {} with {} ran at {:.2f} of the measured limits, "
          "which cannot be; run again on an idle machine",
          PhaseName(row.phase), row.context, row.kv, row.fraction_of_limit);
    }
    report->rows.push_back(std::move(row));
  }
  return OkStatus();
}

}  // namespace

std::vector<int> DrawRanks(int n, int head_dim, double rate, uint64_t seed) {
  const int n_ranks = 2 * n;
  if (rate == 0) return std::vector<int>(n_ranks, head_dim);
  const double mean_rank = (1 - rate) * head_dim;
  Random random(seed);
  std::vector<int> ranks(n_ranks);
  int64_t excess = 0;  // in steps of 16
  for (int& rank : ranks) {
    const double drawn = mean_rank * (1 + kRankVariation * random.Normal());
    rank = std::clamp(static_cast<int>(std::lround(drawn / 16)) * 16, 16, head_dim);
    excess += rank / 16;
  }
  excess -= std::max<int64_t>(n_ranks, std::llround(std::ceil(mean_rank * n_ranks / 16)));
  // A few random ranks move by one step until the mean is right.
  while (excess != 0) {
    int& rank = ranks[random.Below(n_ranks)];
    const int step = excess > 0 ? -16 : 16;
    if (rank + step < 16 || rank + step > head_dim) continue;
    rank += step;
    excess += step / 16;
  }
  return ranks;
}

StatusOr<AttentionBenchReport> RunAttentionBench(const AttentionBenchOptions& options) {
  KVL_RETURN_IF_ERROR(CheckOptions(options));
  KVL_ASSIGN_OR_RETURN(std::vector<Case> cases, MakeCases(options));
  AttentionBenchReport report;
  report.device = DeviceName(options.isa);
  report.n_heads = options.n_heads;
  report.n_kv_heads = options.n_kv_heads;
  report.head_dim = options.head_dim;
  report.n_threads = options.n_threads;
  report.seed = options.seed;
  ThreadPool pool(options.n_threads);
  KVL_RETURN_IF_ERROR(MeasureGemmLimit(&pool, options.isa, &report));
  KVL_RETURN_IF_ERROR(MeasureCases(options, &pool, &report, &cases));
  KVL_RETURN_IF_ERROR(MeasureGemmLimit(&pool, options.isa, &report));
  KVL_RETURN_IF_ERROR(Judge(cases, &report));
  return report;
}

nlohmann::ordered_json ToJson(const AttentionBenchReport& report) {
  nlohmann::ordered_json json;
  json["device"] = report.device;
  json["threads"] = report.n_threads;
  json["read_gb_per_s"] = report.read_gb_per_s;
  json["gemm_tflop_per_s"] = report.gemm_tflop_per_s;
  json["seed"] = report.seed;
  json["rows"] = nlohmann::ordered_json::array();
  for (const AttentionBenchRow& row : report.rows) {
    json["rows"].push_back({{"phase", PhaseName(row.phase)},
                            {"context", row.context},
                            {"n_heads", report.n_heads},
                            {"n_kv_heads", report.n_kv_heads},
                            {"head_dim", report.head_dim},
                            {"kv", row.kv},
                            {"schedule", ScheduleName(row.schedule)},
                            {"time_us", row.time_us},
                            {"bytes", row.bytes},
                            {"working_set_bytes", row.working_set_bytes},
                            {"speedup_vs_none", row.speedup_vs_none},
                            {"fraction_of_limit", row.fraction_of_limit},
                            {"query_tokens", row.n_tokens}});
  }
  return json;
}

std::string ToMarkdown(const AttentionBenchReport& report) {
  std::string text = fmt::format(
      "{}, {} threads: reads {:.1f} GB/s, multiplies {:.2f} TFLOP/s. {} heads, {} KV heads, "
      "head_dim {}; ranks drawn with seed {}.\n\n"
      "| phase | context | tokens | kv | schedule | time us | bytes | working set bytes | speedup "
      "| "
      "of limit |\n"
      "|---|---:|---:|---|---|---:|---:|---:|---:|---:|\n",
      report.device, report.n_threads, report.read_gb_per_s, report.gemm_tflop_per_s,
      report.n_heads, report.n_kv_heads, report.head_dim, report.seed);
  for (const AttentionBenchRow& row : report.rows) {
    text += fmt::format("| {} | {} | {} | {} | {} | {:.1f} | {} | {} | {:.2f} | {:.2f} |\n",
                        PhaseName(row.phase), row.context, row.n_tokens, row.kv,
                        ScheduleName(row.schedule), row.time_us, row.bytes, row.working_set_bytes,
                        row.speedup_vs_none, row.fraction_of_limit);
  }
  return text;
}

}  // namespace kvlathe

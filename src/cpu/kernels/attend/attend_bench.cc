// Attention kernels against the machine's limits, measured in the same run: decode against read
// bandwidth over at least 1 GiB of distinct blocks in shuffled order, prefill against the GEMM
// peak, decode over sealed blocks against plain ones.
//
//   attend_bench [isa] [repetitions] [decode|models|prefill|packed]
//
// `models` decodes in the shapes of three models against both limits, read bandwidth and GEMM peak.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/threads.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/limits/machine_limits.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kHeadDim = 128;
constexpr int kKvHeads = 8;
constexpr int64_t kStreamedBytes = int64_t{1} << 30;

struct Setup {
  ThreadPool* pool;
  const AttendKernels* kernels;
  int n_repetitions;
};

// KV heads of several sequences; each has n_entries in blocks that lie anywhere in memory.
struct Heads {
  Heads(BlockShape block_shape, int n_entries_per_head, int n, int64_t n_block_bytes,
        ThreadPool* pool)
      : shape(block_shape),
        n_entries(n_entries_per_head),
        n_heads(n),
        block_bytes(n_block_bytes),
        block_step((n_block_bytes + 63) / 64 * 64) {
    const int64_t n_blocks = int64_t{n} * BlocksPerHead();
    memory = Buffer::Allocate(n_blocks * block_step, "benchmark blocks").value();
    for (int64_t b = 0; b < n_blocks; ++b) blocks.push_back(memory.data() + b * block_step);
    pool->Run([&](int worker_id) {
      const Range share = ShareOf(n_blocks, 1, worker_id, pool->n_workers());
      for (int64_t b = share.begin; b < share.end; ++b) {
        Bf16* values = reinterpret_cast<Bf16*>(blocks[b]);
        for (int64_t i = 0; i < block_bytes / 2; ++i) {
          values[i] = {static_cast<uint16_t>((0x3e00 + (i * 37 + b * 11) % 0x180) ^ (i % 3 << 15))};
        }
      }
    });
    Random random(1);
    for (int64_t i = n_blocks - 1; i > 0; --i) std::swap(blocks[i], blocks[random.Below(i + 1)]);
  }
  int BlocksPerHead() const { return n_entries / kBlockSize; }
  std::byte* const* BlocksOf(int head) const {
    return blocks.data() + int64_t{head} * BlocksPerHead();
  }
  double PayloadBytes() const { return double(n_heads) * BlocksPerHead() * block_bytes; }

  BlockShape shape;
  int n_entries, n_heads;
  int64_t block_bytes, block_step;
  Buffer memory;
  std::vector<std::byte*> blocks;
  const PackedHead* sealed = nullptr;  // the same runs for every head
};

// Best time of all heads with the same query rows; a worker's item is [first, first + n) of a
// head's tokens.
double TimeAttend(const Setup& setup, const Heads& heads, int gqa_group, int n_tokens,
                  int tokens_per_item) {
  const int n_rows = n_tokens * gqa_group;
  const BlockShape& shape = heads.shape;
  Buffer q = Buffer::Allocate(int64_t{n_rows} * shape.rank_k * 2, "q").value();
  Random random(2);
  for (int64_t i = 0; i < int64_t{n_rows} * shape.rank_k; ++i) {
    q.as<Bf16>()[i] = ToBf16(static_cast<float>(random.Normal()));
  }
  const int n_workers = setup.pool->n_workers();
  const int64_t item_rows = int64_t{tokens_per_item} * gqa_group;
  const int64_t worker_bytes = kAttendScratchBytes + item_rows * (shape.rank_v + 32) * 4;
  Buffer memory = Buffer::Allocate(worker_bytes * n_workers, "scratch").value();
  const int items_per_head = (n_tokens + tokens_per_item - 1) / tokens_per_item;
  double best = 1e30;
  for (int repetition = 0; repetition < setup.n_repetitions; ++repetition) {
    std::atomic<int> next{0};
    const Stopwatch watch;
    setup.pool->Run([&](int worker_id) {
      std::byte* scratch = memory.data() + worker_id * worker_bytes;
      float* o = reinterpret_cast<float*>(scratch + kAttendScratchBytes);
      for (int item; (item = next++) < heads.n_heads * items_per_head;) {
        // Longest items first.
        const int first = (items_per_head - 1 - item / heads.n_heads) * tokens_per_item;
        const int n = std::min(tokens_per_item, n_tokens - first);
        const int first_visible = heads.n_entries - n_tokens + first + 1;
        setup.kernels->attend({.shape = shape,
                               .gqa_group = gqa_group,
                               .n_rows = n * gqa_group,
                               .q = q.as<Bf16>() + int64_t{first} * gqa_group * shape.rank_k,
                               .q_stride = shape.rank_k,
                               .blocks = heads.BlocksOf(item % heads.n_heads),
                               .packed = heads.sealed,
                               .kv_end = first_visible + n - 1,
                               .first_visible = first_visible,
                               .sm_scale = 0.0884f,
                               .o = o,
                               .o_stride = shape.rank_v,
                               .row_max = o + item_rows * shape.rank_v,
                               .row_sum = o + item_rows * (shape.rank_v + 1)},
                              scratch);
      }
    });
    best = std::min(best, watch.Seconds());
  }
  return best;
}

void BenchDecode(const Setup& setup, double read_gb_per_s) {
  fmt::print("decode, {} KV heads, read_gb_per_s {:.1f}\n", kKvHeads, read_gb_per_s);
  fmt::print("{:>8} {:>6} {:>6} {:>6} {:>10} {:>18} {:>9} {:>8}\n", "context", "rank_k", "rank_v",
             "group", "time_us", "working_set_bytes", "fraction", "vs_full");
  for (int context : {8192, 32768}) {
    double full_seconds[9] = {};
    for (auto [rank_k, rank_v] : {std::pair{kHeadDim, kHeadDim}, {64, 64}, {48, 80}, {96, 32}}) {
      const BlockShape shape{rank_k, rank_v, DType::kBf16};
      const int64_t head_bytes = int64_t{context} / kBlockSize * BlockBytes(shape);
      const int n_sequences =
          (kStreamedBytes + head_bytes * kKvHeads - 1) / (head_bytes * kKvHeads);
      const Heads heads(shape, context, n_sequences * kKvHeads, BlockBytes(shape), setup.pool);
      for (int group : {1, 4, 8}) {
        const double seconds = TimeAttend(setup, heads, group, 1, 1) / n_sequences;
        if (rank_k == kHeadDim) full_seconds[group] = seconds;
        const double limit = heads.PayloadBytes() / n_sequences / (read_gb_per_s * 1e9);
        fmt::print("{:>8} {:>6} {:>6} {:>6} {:>10.1f} {:>18} {:>9.3f} {:>8.3f}\n", context, rank_k,
                   rank_v, group, seconds * 1e6, static_cast<int64_t>(heads.PayloadBytes()),
                   limit / seconds, seconds / full_seconds[group]);
      }
    }
  }
}

struct ModelHeads {
  const char* model;
  int n_kv_heads, group, head_dim;
};

void BenchModels(const Setup& setup, Isa isa) {
  constexpr int kContext = 8192;
  constexpr ModelHeads kModels[] = {
      {"SmolLM2-135M", 3, 3, 64}, {"Qwen2.5-Coder-1.5B", 2, 6, 128}, {"Llama 3 8B", 8, 4, 128}};
  double seconds[std::size(kModels)];
  double gemm_flops = MeasureGemmPeak(*setup.pool, isa).value();
  double read_gb_per_s = MeasureReadBandwidth(*setup.pool, isa).value();
  for (size_t i = 0; i < std::size(kModels); ++i) {
    const ModelHeads& m = kModels[i];
    const BlockShape shape{m.head_dim, m.head_dim, DType::kBf16};
    const int64_t layer_bytes = int64_t{m.n_kv_heads} * kContext * TokenBytes(shape);
    const auto n_layers = static_cast<int>((kStreamedBytes + layer_bytes - 1) / layer_bytes);
    const Heads heads(shape, kContext, n_layers * m.n_kv_heads, BlockBytes(shape), setup.pool);
    seconds[i] = TimeAttend(setup, heads, m.group, 1, 1) / n_layers;
    read_gb_per_s = std::max(read_gb_per_s, MeasureReadBandwidth(*setup.pool, isa).value());
  }
  gemm_flops = std::max(gemm_flops, MeasureGemmPeak(*setup.pool, isa).value());
  fmt::print("decode behind {}, read_gb_per_s {:.1f}, GEMM peak {:.0f} GFLOP/s\n", kContext,
             read_gb_per_s, gemm_flops * 1e-9);
  fmt::print("{:>20} {:>17} {:>9} {:>9} {:>9}\n", "model", "layer_time_us", "of_read", "of_gemm",
             "fraction");
  for (size_t i = 0; i < std::size(kModels); ++i) {
    const ModelHeads& m = kModels[i];
    const double n_numbers = double{kContext} * m.n_kv_heads * 2 * m.head_dim;
    const double of_read = 2 * n_numbers / (read_gb_per_s * 1e9) / seconds[i];
    const double of_gemm = 2 * m.group * n_numbers / gemm_flops / seconds[i];
    fmt::print("{:>20} {:>17.1f} {:>9.3f} {:>9.3f} {:>9.3f}\n", m.model, seconds[i] * 1e6, of_read,
               of_gemm, std::max(of_read, of_gemm));
  }
}

void BenchPrefill(const Setup& setup, double gemm_flops) {
  fmt::print("prefill, {} KV heads, group 4, GEMM peak {:.0f} GFLOP/s\n", kKvHeads,
             gemm_flops * 1e-9);
  fmt::print("{:>8} {:>6} {:>6} {:>10} {:>9} {:>8}\n", "context", "rank_k", "rank_v", "time_us",
             "fraction", "vs_full");
  constexpr int kGroup = 4;
  for (int context : {2048, 8192}) {
    double full_seconds = 0;
    for (auto [rank_k, rank_v] : {std::pair{kHeadDim, kHeadDim}, {64, 64}, {48, 80}}) {
      const BlockShape shape{rank_k, rank_v, DType::kBf16};
      const Heads heads(shape, context, kKvHeads, BlockBytes(shape), setup.pool);
      const int n_tokens = std::min(context, 2048);  // the last chunk of a longer prompt
      const double seconds = TimeAttend(setup, heads, kGroup, n_tokens, 64);
      if (rank_k == kHeadDim) full_seconds = seconds;
      const double n_pairs = double(n_tokens) * (context - n_tokens + (n_tokens + 1) / 2.0);
      const double flops = 2.0 * (rank_k + rank_v) * n_pairs * kGroup * kKvHeads;
      fmt::print("{:>8} {:>6} {:>6} {:>10.1f} {:>9.3f} {:>8.3f}\n", context, rank_k, rank_v,
                 seconds * 1e6, flops / gemm_flops / seconds, seconds / full_seconds);
    }
  }
}

struct PackedKind {
  const char* name;
  PackedFormat format;
  bool is_prompt;  // one run of the whole context; else runs of one block each
};

// The records of one head's runs, shared by all heads: what is read once per run or is a small part
// of a block. Scales are 1/16, exact entries spread evenly.
struct SealedRuns {
  SealedRuns(const PackedKind& kind, int rank, int n_blocks) {
    const int run_blocks = kind.is_prompt ? n_blocks : 1;
    const PackedShape run = MakePackedShape(kind.format, {.rank_k = rank, .rank_v = rank}, {},
                                            {.n_kv_heads = kKvHeads,
                                             .layer_rank_v = kKvHeads * rank,
                                             .n_blocks = run_blocks,
                                             .is_prompt = kind.is_prompt});
    block_bytes = PackedBlockBytes(run);
    record = Filled(RunRecordBytes(run));
    layer_record = Filled(LayerRecordBytes(run));
    if (run.n_key_entries() > 0) {
      key_entries = static_cast<int>(run.n_key_entries() / run_blocks);
      Spread(run_blocks, run.n_key_entries(), rank, record.data() + KeySparseEndsOffset(run),
             record.data() + KeySparseOffset(run));
    }
    if (run.n_value_entries() > 0) {
      value_entries = static_cast<int>(run.n_value_entries() / run_blocks / kKvHeads);
      Spread(run_blocks * kKvHeads, run.n_value_entries(), kBlockSize,
             layer_record.data() + ValueSparseEndsOffset(run),
             layer_record.data() + ValueSparseOffset(run));
    }
    shape = run;
    for (int b = 0; b < n_blocks; b += run_blocks) {
      runs.push_back({.first_block = b,
                      .n_blocks = run_blocks,
                      .is_prompt = kind.is_prompt,
                      .record = record.data(),
                      .layer_record = layer_record.data()});
    }
    head = {.format = kind.format,
            .kv_head_idx = 3,
            .n_kv_heads = kKvHeads,
            .layer_rank_v = kKvHeads * rank,
            .runs = runs.data(),
            .n_runs = static_cast<int>(runs.size())};
  }
  SealedRuns(const SealedRuns&) = delete;

  static Buffer Filled(int64_t n_bytes) {
    Buffer buffer = Buffer::Allocate(n_bytes + 64, "benchmark record").value();
    for (int64_t i = 0; i < n_bytes / 2; ++i) buffer.as<F16>()[i] = {0x2c00};
    return buffer;
  }
  // n entries in lists of the same length; what is left over is in none.
  static void Spread(int n_lists, int64_t n, int n_places, std::byte* ends,
                     std::byte* differences) {
    Random random(3);
    for (int list = 0; list < n_lists; ++list) {
      reinterpret_cast<uint32_t*>(ends)[list] = static_cast<uint32_t>((list + 1) * (n / n_lists));
    }
    for (int64_t i = 0; i < n; ++i) {
      const auto difference = static_cast<uint16_t>(0x3f80 + random.Below(0x100));
      std::memcpy(differences + 2 * i, &difference, sizeof(difference));
      differences[2 * n + i] = static_cast<std::byte>(random.Below(n_places));
    }
  }
  // Counts of the exact entries of one block, which fall on its lanes at random.
  void PutCounts(Random* random, std::byte* block) const {
    const auto put = [&](int n_entries, int n_lanes, int n_places, std::byte* counts) {
      if (n_entries == 0) return;
      std::memset(counts, 0, n_lanes);
      for (int n = n_entries; n > 0;) {
        const auto lane = random->Below(n_lanes);
        if (std::to_integer<int>(counts[lane]) == n_places) continue;
        counts[lane] = static_cast<std::byte>(std::to_integer<int>(counts[lane]) + 1);
        --n;
      }
    };
    put(key_entries, kBlockSize, shape.rank_k, block + KeyCountOffset(shape));
    put(value_entries, shape.rank_v, kBlockSize, block + ValueCountOffset(shape));
  }

  PackedShape shape;
  int key_entries = 0, value_entries = 0;  // of a block
  int64_t block_bytes;
  Buffer record, layer_record;
  std::vector<PackedRun> runs;
  PackedHead head;
};

constexpr PackedSide Channel(int bits, int group) {
  return {.bits = bits, .sharing = ScaleSharing::kChannel, .group = group};
}
constexpr PackedSide Token(int bits, int group) {
  return {.bits = bits, .sharing = ScaleSharing::kToken, .group = group};
}
constexpr PackedSide TokenLayer(int bits) {
  return {.bits = bits, .sharing = ScaleSharing::kTokenLayer};
}
constexpr PackedFormat Uniform(const PackedSide& k, const PackedSide& v, int prompt_rank = 0,
                               int decode_rank = 0, double share = 0) {
  return {UniformCodec{k, v}, prompt_rank, decode_rank, share};
}

void BenchPacked(const Setup& setup) {
  constexpr PackedSide kInt8 = {
      .bits = 8, .sharing = ScaleSharing::kToken, .group = 0, .is_symmetric = true};
  constexpr PackedFormat kGear = Uniform(Channel(4, 0), TokenLayer(4), 4, 2, 0.02);
  const PackedKind kinds[] = {
      {"plain", {}, true},
      {"int8 per token", Uniform(kInt8, kInt8), true},
      {"4 bits per token, 64", Uniform(Token(4, 64), Token(4, 64)), true},
      {"4 bits KCVT", Uniform(Channel(4, 0), TokenLayer(4)), true},
      {"4 bits KCVT, decoded", Uniform(Channel(4, 0), TokenLayer(4)), false},
      {"4 bits KIVI 64", Uniform(Channel(4, 64), Token(4, 64)), true},
      {"2 bits KIVI 64", Uniform(Channel(2, 64), Token(2, 64)), true},
      {"2 bits KIVI 32", Uniform(Channel(2, 32), Token(2, 32)), true},
      {"3 bits KIVI 64", Uniform(Channel(3, 64), Token(3, 64)), true},
      {"4/2 bits KVarN", {BalancedCodec{}}, true},
      {"4 bits GEAR", kGear, true},
  };
  constexpr int kContext = 8192;
  const BlockShape shape{kHeadDim, kHeadDim, DType::kBf16};
  fmt::print("sealed blocks, context {}, {} KV heads, ranks {}\n", kContext, kKvHeads, kHeadDim);
  fmt::print("{:>22} {:>6} {:>10} {:>13} {:>14} {:>8}\n", "format", "group", "time_us",
             "block_bytes", "ns_per_block", "vs_plain");
  double plain_seconds[9] = {};
  for (const PackedKind& kind : kinds) {
    const bool is_plain = &kind == kinds;
    const SealedRuns sealed(kind, kHeadDim, kContext / kBlockSize);
    const int64_t block_bytes = is_plain ? BlockBytes(shape) : sealed.block_bytes;
    const int64_t sequence_bytes = int64_t{kContext} / kBlockSize * kKvHeads * block_bytes;
    const int n_sequences =
        static_cast<int>((kStreamedBytes + sequence_bytes - 1) / sequence_bytes);
    Heads heads(shape, kContext, n_sequences * kKvHeads, block_bytes, setup.pool);
    if (!is_plain) {
      heads.sealed = &sealed.head;
      Random random(4);
      for (std::byte* block : heads.blocks) sealed.PutCounts(&random, block);
    }
    for (int group : {1, 4, 8}) {
      const double seconds = TimeAttend(setup, heads, group, 1, 1) / n_sequences;
      if (is_plain) plain_seconds[group] = seconds;
      const double n_blocks = double{kContext} / kBlockSize * kKvHeads;
      fmt::print("{:>22} {:>6} {:>10.1f} {:>13} {:>14.0f} {:>8.3f}\n", kind.name, group,
                 seconds * 1e6, block_bytes, seconds * setup.pool->n_workers() / n_blocks * 1e9,
                 seconds / plain_seconds[group]);
    }
  }
}

int Main(int argc, char** argv) {
  Isa isa = AvailableIsas().back();
  for (Isa candidate : AvailableIsas()) {
    if (argc > 1 && IsaName(candidate) == argv[1]) isa = candidate;
  }
  ThreadPool pool(AvailableProcessors());
  const Setup setup{&pool, &GetAttendKernels(isa, DType::kBf16), argc > 2 ? std::atoi(argv[2]) : 5};
  fmt::print("isa {}, {} threads\n", IsaName(isa), pool.n_workers());
  const std::string_view phase = argc > 3 ? argv[3] : "";
  if (phase == "" || phase == "decode") {
    BenchDecode(setup, MeasureReadBandwidth(pool, isa).value());
  }
  if (phase == "" || phase == "models") BenchModels(setup, isa);
  if (phase == "" || phase == "prefill") BenchPrefill(setup, MeasureGemmPeak(pool, isa).value());
  if (phase == "" || phase == "packed") BenchPacked(setup);
  return 0;
}

}  // namespace
}  // namespace kvlathe

int main(int argc, char** argv) { return kvlathe::Main(argc, argv); }

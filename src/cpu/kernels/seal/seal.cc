#include "cpu/kernels/seal/seal.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <variant>
#include <vector>

#include "base/check.h"
#include "cpu/kernels/seal/seal_codebook.h"
#include "cpu/kernels/seal/seal_codes.h"
#include "cpu/kernels/seal/seal_exact.h"
#include "cpu/kernels/seal/seal_kernels.h"
#include "cpu/kernels/seal/seal_lowrank.h"
#include "cpu/kernels/seal/seal_sphere.h"
#include "cpu/kernels/seal/seal_split.h"
#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {
namespace {

bool IsValidSide(const PackedSide& side, bool is_key) {
  const bool has_bits = (side.bits >= 2 && side.bits <= 5) || side.bits == 8;
  if (!has_bits || side.group < 0 || side.group % 16 != 0) return false;
  const bool may_clip = side.sharing == ScaleSharing::kToken && !side.is_symmetric;
  if (side.clip <= 0 || side.clip > 1 || (side.clip < 1 && !may_clip)) return false;
  switch (side.sharing) {
    case ScaleSharing::kChannel:
      return is_key && !side.is_symmetric &&
             (side.group == 0 || kBlockSize % side.group == 0 || side.group % kBlockSize == 0);
    case ScaleSharing::kToken:
      return !side.is_symmetric || side.bits == 8 || side.bits == 4;
    case ScaleSharing::kTokenLayer:
      return !is_key && !side.is_symmetric;
    case ScaleSharing::kModel:
    case ScaleSharing::kNone:
      return false;
  }
  return false;
}

bool IsValidRank(int rank, const Codec& codec) {
  return rank > 0 && rank % 16 == 0 && rank <= MostChannels(codec);
}

bool IsValidSplit(const BitSplit& split, int rank) {
  return split.n_channels() > 0 && split.n_channels() <= rank &&
         std::ranges::all_of(split.channels, [](int n) { return n >= 0 && n % 16 == 0; });
}

// How the sides of a run become codes, and what the format and a head must be like for that. Each
// codec has one; a side is false when a row holds NaN or infinity.
struct EvenSteps {
  const UniformCodec& codec;
  bool IsValid(const PackedFormat& /*format*/) const {
    return IsValidSide(codec.k, /*is_key=*/true) && IsValidSide(codec.v, /*is_key=*/false);
  }
  static bool IsValidHead(const PackedShape& shape) {
    return std::holds_alternative<std::monostate>(shape.storage);
  }
  static bool SealKeysOf(const HeadRun& run, SealWorkspace* ws) { return SealKeys(run, ws); }
  static bool SealValuesOf(const HeadRun& run, SealWorkspace* ws) { return SealValues(run, ws); }
};
struct BalancedSteps {
  const BalancedCodec& codec;
  bool IsValid(const PackedFormat& format) const {
    const CodecFacts facts = FactsOf(codec);
    const bool has_tile = codec.tile > 0 && codec.tile % kBlockSize == 0;
    const bool is_repaired =
        format.prompt_rank > 0 || format.decode_rank > 0 || format.sparse_share > 0;
    return has_tile && codec.tile <= kMostTileTokens && !is_repaired &&
           IsValidSide(facts.k, /*is_key=*/true) && IsValidSide(facts.v, /*is_key=*/false);
  }
  static bool IsValidHead(const PackedShape& shape) { return EvenSteps::IsValidHead(shape); }
  static bool SealKeysOf(const HeadRun& run, SealWorkspace* ws) { return SealKeys(run, ws); }
  static bool SealValuesOf(const HeadRun& run, SealWorkspace* ws) { return SealValues(run, ws); }
};
struct TableNumbers {
  const TableCodec& codec;
  bool IsValid(const PackedFormat& /*format*/) const {
    return codec.table != nullptr && codec.group > 0 && codec.group % 16 == 0;
  }
  static bool IsValidHead(const PackedShape& shape) { return EvenSteps::IsValidHead(shape); }
  static bool SealKeysOf(const HeadRun& run, SealWorkspace* ws) { return SealKeys(run, ws); }
  static bool SealValuesOf(const HeadRun& run, SealWorkspace* ws) { return SealValues(run, ws); }
};
struct SphereLevels {
  const SphereCodec& codec;
  bool IsValid(const PackedFormat& format) const {
    const auto has_table = [](int bits) { return bits >= 2 && bits <= kMostNormalBits; };
    return has_table(codec.key_bits) && has_table(codec.value_bits) && format.sparse_share == 0 &&
           format.prompt_rank == 0 && format.decode_rank == 0;
  }
  static bool IsValidHead(const PackedShape& shape) { return EvenSteps::IsValidHead(shape); }
  static bool SealKeysOf(const HeadRun& run, SealWorkspace* ws) {
    return SealSphereSide(run, /*is_key=*/true, ws);
  }
  static bool SealValuesOf(const HeadRun& run, SealWorkspace* ws) {
    return SealSphereSide(run, /*is_key=*/false, ws);
  }
};
struct Codebooks {
  const CodebookCodec& codec;
  bool IsValid(const PackedFormat& /*format*/) const { return codec.bits >= 2 && codec.bits <= 4; }
  static bool IsValidHead(const PackedShape& shape) { return EvenSteps::IsValidHead(shape); }
  static bool SealKeysOf(const HeadRun& run, SealWorkspace* ws) {
    return SealCodebookKeys(run, ws);
  }
  static bool SealValuesOf(const HeadRun& run, SealWorkspace* ws) { return SealValues(run, ws); }
};
struct SplitCodes {
  const SplitBitsCodec& codec;
  static bool IsValid(const PackedFormat& format) { return format.sparse_share == 0; }
  static bool IsValidHead(const PackedShape& shape) {
    const auto* const bits = std::get_if<EntryBits>(&shape.storage);
    if (bits == nullptr || !IsValidSplit(bits->k, shape.rank_k)) return false;
    if (!shape.has_one_side) return IsValidSplit(bits->v, shape.rank_v);
    return bits->v == BitSplit() && shape.rank_v == shape.rank_k && shape.lowrank() == 0;
  }
  static bool SealKeysOf(const HeadRun& run, SealWorkspace* ws) { return SealSplitKeys(run, ws); }
  static bool SealValuesOf(const HeadRun& run, SealWorkspace* ws) {
    return run.shape.has_one_side || SealSplitValues(run, ws);
  }
};
// Nothing to seal, or not by this sealer.
struct NotSealedHere {
  static bool IsValid(const PackedFormat& /*format*/) { return false; }
  static bool IsValidHead(const PackedShape& /*shape*/) { return false; }
  static bool SealKeysOf(const HeadRun& /*run*/, SealWorkspace* /*ws*/) { return false; }
  static bool SealValuesOf(const HeadRun& /*run*/, SealWorkspace* /*ws*/) { return false; }
};

EvenSteps WayOf(const UniformCodec& codec) { return {codec}; }
BalancedSteps WayOf(const BalancedCodec& codec) { return {codec}; }
TableNumbers WayOf(const TableCodec& codec) { return {codec}; }
SphereLevels WayOf(const SphereCodec& codec) { return {codec}; }
Codebooks WayOf(const CodebookCodec& codec) { return {codec}; }
SplitCodes WayOf(const SplitBitsCodec& codec) { return {codec}; }
NotSealedHere WayOf(const RowsCodec& /*codec*/) { return {}; }
NotSealedHere WayOf(const RotatedCodec& /*codec*/) { return {}; }

// f(the way of the format's codec).
template <typename F>
auto WithWay(const PackedFormat& format, const F& f) {
  return std::visit([&](const auto& codec) { return f(WayOf(codec)); }, format.codec);
}

// A block of the V of all heads of a job.
struct LayerItem {
  int64_t first_run;  // of the job's heads
  int n_heads;
  int block_idx;
};

// Where the first row that cannot be sealed is, in the order of heads, K before V.
class FirstBad {
 public:
  void Add(int64_t run_idx, bool is_key) {
    const int64_t place = 2 * run_idx + (is_key ? 0 : 1);
    int64_t first = place_.load(std::memory_order_relaxed);
    while (place < first && !place_.compare_exchange_weak(first, place)) {
    }
  }
  bool is_none() const { return place_.load() == kNone; }
  int64_t run_idx() const { return place_.load() / 2; }
  bool is_key() const { return place_.load() % 2 == 0; }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> place_{kNone};
};

// All but the low-rank factors. False when a row holds NaN or infinity.
bool SealSide(const HeadRun& run, bool is_key, SealWorkspace* ws) {
  return WithWay(run.shape.format, [&](const auto& way) {
    return is_key ? way.SealKeysOf(run, ws) : way.SealValuesOf(run, ws);
  });
}

}  // namespace

const SealKernels& GetSealKernels(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2:
      return kSealAvx2;
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return kSealAvx512;
  }
  return kSealScalar;
}

struct Sealer::State {
  PackedFormat format;
  DType row_type;
  int power_loops;
  ThreadPool* pool;
  const SealKernels* kernels;
  std::vector<SealWorkspace> workspaces;  // of the workers
  std::vector<HeadRun> runs;
  std::vector<LayerItem> layer_items;

  void Plan(std::span<const SealJob> jobs);
  SealSizes Sizes() const;
  template <typename F>
  void ForEach(int64_t n_items, const F& f);
  Status Seal();
};

// Lists the runs of all heads, and the blocks that need what spans heads.
void Sealer::State::Plan(std::span<const SealJob> jobs) {
  runs.clear();
  layer_items.clear();
  for (const SealJob& job : jobs) {
    KVL_CHECK_GE(job.n_blocks, 1);
    const int n_heads = static_cast<int>(job.heads.size());
    KVL_CHECK(!KeySide(format.codec).has_codebook || job.codebooks != nullptr);
    RunOfLayer run = {.n_kv_heads = n_heads,
                      .n_blocks = job.n_blocks,
                      .is_prompt = job.is_prompt,
                      .is_repaired = job.is_repaired,
                      .entry_class = job.entry_class};
    for (const SealHead& head : job.heads) run.layer_rank_v += head.rank_v;
    PackedShape shape;
    const auto first_run = static_cast<int64_t>(runs.size());
    for (int h = 0; h < n_heads; ++h) {
      const SealHead& head = job.heads[h];
      shape = MakePackedShape(format,
                              {.rank_k = head.rank_k, .rank_v = head.rank_v, .row_type = row_type},
                              head.storage, run);
      KVL_CHECK(IsValidRank(shape.rank_k, format.codec) && IsValidRank(shape.rank_v, format.codec));
      KVL_CHECK(WithWay(format, [&](const auto& way) { return way.IsValidHead(shape); }));
      KVL_CHECK(head.record != nullptr || RunRecordBytes(shape) == 0);
      runs.push_back({kernels, row_type, shape, &job, h});
    }
    if (LayerRecordBytes(shape) == 0) continue;
    KVL_CHECK(job.layer_record != nullptr);
    for (int b = 0; b < job.n_blocks; ++b) layer_items.push_back({first_run, n_heads, b});
  }
}

SealSizes Sealer::State::Sizes() const {
  SealSizes sizes;
  for (const HeadRun& run : runs) {
    const PackedShape& s = run.shape;
    const int64_t rank = std::max(s.rank_k, s.rank_v);
    sizes.max_rank = std::max(sizes.max_rank, rank);
    sizes.tile_words = std::max(sizes.tile_words, s.k.balanced_tokens * rank);
    sizes.has_parts = std::holds_alternative<EntryBits>(s.storage);
    if (s.key_outliers() > 0) {
      sizes.column_keys = std::max<int64_t>(sizes.column_keys, s.n_tokens());
    }
    if (s.k.has_norms) sizes.residual_words = std::max(sizes.residual_words, kBlockSize * rank);
    if (s.k.has_codebook) {
      sizes.quotients = std::max(sizes.quotients, s.n_key_entries() > 0 ? s.n_tokens() * rank : 0);
    }
    if (s.value_outliers() > 0) {
      sizes.column_keys = std::max<int64_t>(sizes.column_keys, s.layer_rank_v);
    }
    if (s.n_key_entries() > 0 || s.n_value_entries() > 0) {
      sizes.has_exact = true;
      sizes.residual_words = std::max(sizes.residual_words, kBlockSize * rank);
    }
    if (s.lowrank() == 0) continue;
    sizes.lowrank = std::max(sizes.lowrank, s.lowrank());
    sizes.residual_words = std::max(sizes.residual_words, s.n_tokens() * rank);
    sizes.factor_words = std::max(sizes.factor_words, int64_t{s.n_tokens()} * s.lowrank());
    sizes.losses = std::max(sizes.losses, WaitingLosses(s));
  }
  return sizes;
}

// f(item, workspace of the worker) for all items, taken by whoever is free: heads differ in rank.
template <typename F>
void Sealer::State::ForEach(int64_t n_items, const F& f) {
  std::atomic<int64_t> next{0};
  pool->Run([&](int worker_id) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n_items;) {
      f(i, &workspaces[worker_id]);
    }
  });
}

Status Sealer::State::Seal() {
  const SealSizes sizes = Sizes();
  for (SealWorkspace& workspace : workspaces) KVL_RETURN_IF_ERROR(workspace.Reserve(sizes));
  FirstBad bad;
  if (!layer_items.empty()) {
    ForEach(static_cast<int64_t>(layer_items.size()), [&](int64_t i, SealWorkspace* workspace) {
      const LayerItem& item = layer_items[i];
      const std::span<const HeadRun> heads(&runs[item.first_run], item.n_heads);
      const int bad_head = SealLayerValues(heads, item.block_idx, workspace);
      if (bad_head >= 0) bad.Add(item.first_run + bad_head, /*is_key=*/false);
    });
  }
  // V of a head needs all blocks of its layer; with a bad one their lists are not complete.
  if (bad.is_none()) {
    ForEach(2 * static_cast<int64_t>(runs.size()), [&](int64_t i, SealWorkspace* workspace) {
      const HeadRun& run = runs[i / 2];
      const bool is_key = i % 2 == 0;
      if (!SealSide(run, is_key, workspace)) {
        bad.Add(i / 2, is_key);
      } else if (run.shape.lowrank() > 0) {
        FitResidual(run, is_key, power_loops, workspace);
      }
    });
  }
  if (bad.is_none()) return OkStatus();
  const HeadRun& run = runs[bad.run_idx()];
  return Error(StatusCode::kDataLoss,
               "{} of KV head {} holds NaN or infinity; such rows cannot be compressed",
               bad.is_key() ? "K" : "V", run.job->first_head + run.head_idx);
}

Sealer::Sealer(const PackedFormat& format, DType row_type, int power_loops, ThreadPool* pool,
               Isa isa)
    : state_(new State{.format = format,
                       .row_type = row_type,
                       .power_loops = power_loops,
                       .pool = pool,
                       .kernels = &GetSealKernels(isa),
                       .workspaces = std::vector<SealWorkspace>(pool->n_workers())}) {
  KVL_CHECK(WithWay(format, [&](const auto& way) { return way.IsValid(format); }));
  KVL_CHECK(format.prompt_rank >= 0 && format.prompt_rank <= kMaxPackedLowrank);
  KVL_CHECK(format.decode_rank >= 0 && format.decode_rank <= kMaxPackedLowrank);
  KVL_CHECK(format.sparse_share >= 0 && format.sparse_share <= 1);
  KVL_CHECK(row_type == DType::kBf16 || row_type == DType::kF32);
  KVL_CHECK_GE(power_loops, 1);
}

Sealer::~Sealer() = default;

Status Sealer::Run(std::span<const SealJob> jobs) {
  state_->Plan(jobs);
  return state_->Seal();
}

}  // namespace kvlathe

#include "evaluation/bench/bench_attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/random.h"
#include "cpu/kernels/limits/machine_limits.h"
#include "evaluation/bench/bench_attention_layout.h"
#include "format/mean_angles.h"
#include "format/rows/block_layout.h"
#include "format/split_bits/coded_rows.h"
#include "format/split_bits/split_bits_layout.h"
#include "kv/quantizer/codebooks.h"

namespace kvlathe {
namespace {

int64_t BlocksOf(int context) { return (context + kBlockSize - 1) / kBlockSize; }

int64_t SealedBlocksOf(const AttentionCase& c) {
  return c.extents.empty() ? 0 : c.extents.back().first_block + c.extents.back().n_blocks;
}

// Calls f(run index, shape of the run in this head) for every run of head i of all layers.
template <typename F>
void ForEachRun(const AttentionCase& c, size_t i, const F& f) {
  const int n_kv_heads = c.layout.n_kv_heads, head = static_cast<int>(i);
  for (size_t r = 0; r < c.extents.size(); ++r) {
    f(r, PackedShapeOf(c.layout, head / n_kv_heads, head % n_kv_heads, c.extents[r]));
  }
}

// Of one head, padded as in memory.
int64_t BlockBytesOfHead(const AttentionCase& c, size_t i) {
  int64_t n_bytes = (BlocksOf(c.lengths[i]) - SealedBlocksOf(c)) *
                    OpenBlockBytes(c.layout.codec(), c.layout.shapes[i]);
  ForEachRun(c, i, [&](size_t, const PackedShape& shape) {
    n_bytes += shape.n_blocks * PackedBlockObjectBytes(shape);
  });
  return n_bytes;
}

// What a pass over all layers must read.
int64_t PayloadBytes(const AttentionCase& c) {
  int64_t n_bytes = 0;
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) {
    const BlockShape& shape = c.layout.shapes[i];
    const int64_t n_plain = c.lengths[i] - SealedBlocksOf(c) * kBlockSize;
    n_bytes += n_plain * OpenTokenBytes(c.layout.codec(), shape);
    ForEachRun(c, i, [&](size_t, const PackedShape& run) {
      n_bytes += run.n_blocks * PackedBlockBytes(run) + RunRecordBytes(run);
      if (i % c.layout.n_kv_heads == 0) n_bytes += LayerRecordBytes(run);
    });
  }
  return n_bytes;
}

// The object at an offset of a region.
ObjectId ObjectAt(uint32_t region, int64_t offset) {
  return {region, static_cast<uint32_t>(offset / kDeviceAlignment)};
}

void PlaceBlocks(std::byte* memory, const AttentionBenchOptions& options, AttentionCase* c) {
  const uint32_t region = c->device->Adopt(memory);
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
    std::fill_n(of_head, BlocksOf(c->lengths[i]),
                OpenBlockBytes(c->layout.codec(), c->layout.shapes[i]));
    ForEachRun(*c, i, [&](size_t r, const PackedShape& shape) {
      std::fill_n(of_head + c->extents[r].first_block, shape.n_blocks,
                  PackedBlockObjectBytes(shape));
    });
  }
  c->blocks.resize(order.size());
  int64_t offset = 0;
  for (int64_t i : order) {
    if (sizes[i] == 0) continue;
    c->blocks[i] = ObjectAt(region, offset);
    offset += sizes[i];
  }
}

// Exact entries spread evenly over blocks, and over the heads of a block by their widths: a list
// for each block and head.
class SparseFiller {
 public:
  SparseFiller(int64_t n_entries, int n_blocks, const std::vector<int>& widths, uint64_t seed)
      : n_entries_(n_entries), n_blocks_(n_blocks), random_(seed) {
    for (const int width : widths) ends_.push_back(ends_.back() + width);
  }

  // Where the lists end, and random entries of places below n_places.
  void FillRecord(int n_places, std::byte* ends, std::byte* differences) {
    for (int64_t i = 0; n_entries_ > 0 && i < n_blocks_ * (std::ssize(ends_) - 1); ++i) {
      const auto end = static_cast<uint32_t>(EndOf(i));
      std::memcpy(ends + 4 * i, &end, sizeof(end));
    }
    for (int64_t i = 0; i < n_entries_; ++i) {
      const uint16_t one = 0x3f80;
      std::memcpy(differences + 2 * i, &one, sizeof(one));
      differences[2 * n_entries_ + i] = static_cast<std::byte>(random_.Below(n_places));
    }
  }
  // The entries of a list fall on lanes at random, at most n_places on each; counts are a byte
  // each, or two.
  void AppendCounts(int64_t list, int n_lanes, int n_places, bool is_wide,
                    std::vector<std::byte>* to) {
    if (n_entries_ == 0) return;
    std::vector<int> counts(n_lanes);
    for (int64_t n = EndOf(list) - EndOf(list - 1); n > 0;) {
      int& count = counts[random_.Below(n_lanes)];
      if (count == n_places) continue;
      ++count;
      --n;
    }
    for (const int count : counts) {
      to->push_back(static_cast<std::byte>(count & 255));
      if (is_wide) to->push_back(static_cast<std::byte>(count >> 8));
    }
  }

 private:
  int64_t EndOf(int64_t list) const {
    const int64_t n_heads = std::ssize(ends_) - 1;
    const int64_t block = (list + 1) / n_heads, head = (list + 1) % n_heads;
    const int64_t begin = n_entries_ * block / n_blocks_;
    const int64_t end = n_entries_ * (block + 1) / n_blocks_;
    return begin + (end - begin) * ends_[head] / ends_.back();
  }

  int64_t n_entries_, n_blocks_;
  std::vector<int> ends_ = {0};  // of the heads, in widths
  Random random_;
};

// Records of every run, random where any number will do.
Status MakeRecords(const AttentionBenchOptions& options, ThreadPool* pool, AttentionCase* c) {
  if (c->extents.empty()) return OkStatus();
  int64_t n_bytes = 0;
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    ForEachRun(*c, i, [&](size_t, const PackedShape& shape) {
      n_bytes += RunRecordObjectBytes(shape) + LayerRecordObjectBytes(shape);
    });
  }
  KVL_ASSIGN_OR_RETURN(c->records, Buffer::Allocate(std::max<int64_t>(n_bytes, 64), "records"));
  FillNormal(pool, options.seed + 1, n_bytes, c->records.data());
  const uint32_t region = c->device->Adopt(c->records.data());
  std::byte* next = c->records.data();
  const auto id_of_next = [&] { return ObjectAt(region, next - c->records.data()); };
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    const size_t first_head = i - i % c->layout.n_kv_heads;
    ForEachRun(*c, i, [&](size_t r, const PackedShape& s) {
      SealedRun run{.first_block = static_cast<int>(c->extents[r].first_block),
                    .n_blocks = s.n_blocks,
                    .entry_class = c->extents[r].entry_class,
                    .record = id_of_next()};
      SparseFiller of_k(s.n_key_entries(), s.n_blocks, {1}, i);
      of_k.FillRecord(s.rank_k, next + KeySparseEndsOffset(s), next + KeySparseOffset(s));
      next += RunRecordObjectBytes(s);
      std::vector<int> ranks_v;
      for (int g = 0; g < s.n_kv_heads; ++g) {
        ranks_v.push_back(c->layout.shapes[first_head + g].rank_v);
      }
      SparseFiller of_v(s.n_value_entries(), s.n_blocks, ranks_v, i + 1);
      if (i == first_head) {
        run.layer_record = id_of_next();
        of_v.FillRecord(kBlockSize, next + ValueSparseEndsOffset(s), next + ValueSparseOffset(s));
        next += LayerRecordObjectBytes(s);
      } else {
        run.layer_record = c->runs[first_head * c->extents.size() + r].layer_record;
      }
      for (int b = 0; b < s.n_blocks; ++b) {
        of_k.AppendCounts(b, kBlockSize, s.rank_k, HasWideKeyCounts(s), &c->counts);
        of_v.AppendCounts(int64_t{b} * s.n_kv_heads + static_cast<int64_t>(i - first_head),
                          s.rank_v, kBlockSize, false, &c->counts);
      }
      c->runs.push_back(run);
    });
  }
  return OkStatus();
}

// The codebooks of the layers, where the format has them.
void MakeCodebooks(Residents* residents, AttentionCase* c) {
  if (c->extents.empty() || !KeySide(c->layout.codec()).has_codebook) return;
  for (LayerCodebooks& layer : EvenCodebooks(c->layout)) {
    c->codebooks.emplace_back(residents, residents->AddCodebooks(std::move(layer)));
  }
}

// Angles that turn nothing, and random ways back from latents.
void MakeKeyMaps(const AttentionBenchOptions& options, Residents* residents, AttentionCase* c) {
  const std::optional<SealPlan>& seal = c->layout.seal;
  const bool turns_codes = seal.has_value() && seal->format.seals_keys_before_rope();
  const bool lose_mean = TurningPairs(c->keys) > 0;
  if (!turns_codes && !TurnWhenRead(c->keys) && !HasFrames(c->keys) && !lose_mean) return;
  const int key_dim = options.head_dim / HeadsPerMap(c->keys);
  const int64_t n = BlocksOf(c->row.context) * kBlockSize * key_dim / 2;
  c->cos.assign(n, 1.0f);
  c->sin.assign(n, 0.0f);
  if (!TurnWhenRead(c->keys)) return;
  Random random(options.seed, 3);
  std::vector<float> way_back;
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    const BlockShape& shape = c->layout.shapes[i];
    way_back.resize(int64_t{shape.rank_k} * options.head_dim);
    const double deviation = 1 / std::sqrt(shape.rank_k);
    for (float& x : way_back) x = static_cast<float>(deviation * random.Normal());
    const HeadStorage storage = c->layout.storages.empty() ? HeadStorage() : c->layout.storages[i];
    const auto* const bits = std::get_if<HeadBits>(&storage);
    std::vector<BitSplit> splits;
    if (bits != nullptr) splits = {bits->middle.k, bits->most.k, bits->least.k};
    LatentMap map(way_back, {}, options.head_dim, key_dim, shape.row_type, splits);
    c->maps.emplace_back(residents, residents->AddLatentMap(std::move(map)));
  }
}

// A random mean that keys have lost, and angles that turn nothing.
void MakeTurningMean(const AttentionBenchOptions& options, AttentionCase* c) {
  if (TurningPairs(c->keys) == 0) return;
  Random random(options.seed, 5);
  c->mean_angles = MakeMeanAngles(std::vector<double>(TurningPairs(c->keys)), 1);
  c->turning_mean.resize(options.head_dim);
  for (float& x : c->turning_mean) x = static_cast<float>(random.Normal());
}

// Random maps of queries, one for each KV head of the model.
Status MakeFrameMaps(const AttentionBenchOptions& options, Residents* residents, AttentionCase* c) {
  if (!HasFrames(c->keys)) return OkStatus();
  const int n_joined = HeadsPerMap(c->keys), head_dim = options.head_dim / n_joined;
  Random random(options.seed, 4);
  std::vector<float> map;
  for (const BlockShape& shape : c->layout.shapes) {
    map.resize(int64_t{shape.rank_k} * head_dim);
    const double deviation = 1 / std::sqrt(head_dim);
    for (float& x : map) x = static_cast<float>(deviation * random.Normal());
    for (int i = 0; i < n_joined; ++i) {
      KVL_ASSIGN_OR_RETURN(Weight weight, Weight::Create(residents, shape.rank_k, head_dim,
                                                         DenseWeights(shape.row_type)));
      weight.WriteRows(0, shape.rank_k, DType::kF32, map.data(), head_dim);
      c->frame_maps.push_back(weight.id());
      c->frame_queries.push_back(std::move(weight));
    }
  }
  return OkStatus();
}

// Random ways back to the rows of the model's KV heads, where a model has them (PackLayerBasis).
Status MakeRebuilders(const AttentionBenchOptions& options, Residents* residents,
                      AttentionCase* c) {
  const int n_joined = HeadsPerMap(c->keys), head_dim = options.head_dim / n_joined;
  if (!CanBeRebuilt(c->keys)) return OkStatus();
  Random random(options.seed, 5);
  const auto add = [&](int n_out, int n_in, WeightType type, std::vector<WeightId>* ids) -> Status {
    std::vector<float> map(int64_t{n_out} * n_in);
    for (float& x : map) x = static_cast<float>(random.Normal() / std::sqrt(n_in));
    KVL_ASSIGN_OR_RETURN(Weight weight, Weight::Create(residents, n_out, n_in, type));
    weight.WriteRows(0, n_out, DType::kF32, map.data(), n_in);
    ids->push_back(weight.id());
    c->rebuilders.push_back(std::move(weight));
    return OkStatus();
  };
  for (const BlockShape& shape : c->layout.shapes) {
    for (int i = 0; i < n_joined; ++i) {
      KVL_RETURN_IF_ERROR(add(head_dim, shape.rank_k, WeightType::kBf16, &c->rebuilt_keys));
      if (n_joined == 1) continue;
      KVL_RETURN_IF_ERROR(add(head_dim, shape.rank_v, WeightType::kBf16, &c->rebuilt_values));
      KVL_RETURN_IF_ERROR(add(shape.rank_v, head_dim, WeightType::kF32, &c->rebuilt_outputs));
    }
  }
  return OkStatus();
}

// Votes go to tables that the layers share.
Status AddVotes(const AttentionBenchOptions& options, AttentionCase* c) {
  if (!c->retention.has_value() || !c->retention->HasVotes()) return OkStatus();
  const int64_t table_bytes = BlocksOf(c->row.context) * EntryTable::BlockBytes(true);
  KVL_ASSIGN_OR_RETURN(c->entries,
                       Buffer::Allocate(options.n_kv_heads * table_bytes, "entry tables"));
  std::memset(c->entries.data(), 0, c->entries.n_bytes());
  const uint32_t region = c->device->Adopt(c->entries.data());
  for (size_t i = 0; i < c->jobs.size(); ++i) {
    HeadJob& job = c->jobs[i];
    const auto offset = static_cast<int64_t>(i % options.n_kv_heads) * table_bytes;
    job.scored = {.object = ObjectAt(region, offset), .has_sums = true};
    const EntryTable table(c->entries.data() + offset, true);
    for (int e = 0; e < job.n_entries; ++e) table.position(e) = e;
    switch (c->retention->votes) {
      case RetentionPlan::Votes::kNone:
      case RetentionPlan::Votes::kAll:
        break;
      case RetentionPlan::Votes::kRepeat:  // while the prompt is read again
        job.takes_largest = true;
        if (c->row.phase == BenchPhase::kDecode) job.first_scored = job.n_tokens;
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
void MakeJobs(const AttentionBenchOptions& options, const BenchMemory& memory, AttentionCase* c) {
  const int group = options.n_heads / options.n_kv_heads;
  const int64_t n_tokens = c->row.n_tokens, n_rows = n_tokens * group;
  const auto n_head_blocks = static_cast<size_t>(BlocksOf(c->row.context));
  for (size_t i = 0; i < c->layout.shapes.size(); ++i) {
    const int64_t head = static_cast<int64_t>(i) % options.n_kv_heads;
    const BlockShape& shape = c->layout.shapes[i];
    c->jobs.push_back(
        {.device = c->device.get(),
         .shape = shape,
         .head_dim = options.head_dim,
         .gqa_group = group,
         .n_tokens = c->row.n_tokens,
         .q = memory.places(memory.q.as<Bf16>() + head * n_rows * options.head_dim),
         .q_stride = shape.rank_k,
         .blocks = std::span(c->blocks).subspan(i * n_head_blocks, n_head_blocks),
         .n_entries = c->lengths[i],
         .first_visible = c->lengths[i] - c->row.n_tokens + 1,
         .out = memory.places(memory.out.as<Bf16>() +
                              head * n_rows * std::max(options.head_dim, shape.rank_v)),
         .out_type = DType::kBf16,
         .out_stride = int64_t{group} * shape.rank_v});
    const KeyRotationId rotation =
        c->cos.empty() ? KeyRotationId()
                       : KeyRotationId{memory.places(c->cos.data()), memory.places(c->sin.data()),
                                       options.head_dim / HeadsPerMap(c->keys) / 2};
    if (HasFrames(c->keys) || TurningPairs(c->keys) > 0) {
      const int n_joined = HeadsPerMap(c->keys);
      HeadJob& job = c->jobs.back();
      job.q_full = memory.places(memory.q.as<Bf16>());
      job.q_full_stride = options.head_dim;
      job.frames = {
          .maps =
              c->frame_maps.empty()
                  ? std::span<const WeightId>()
                  : std::span(c->frame_maps).subspan(i * n_joined, static_cast<size_t>(n_joined)),
          .n_joined = n_joined,
          .turning_mean = memory.places(c->turning_mean.data()),
          .mean_angles = memory.places(c->mean_angles.data()),
          .n_pairs = TurningPairs(c->keys),
          .cos = rotation.cos,
          .sin = rotation.sin,
          .half = rotation.half,
          .head_dim = options.head_dim / n_joined};
    }
    if (!c->rebuilt_keys.empty()) {
      const auto n_joined = static_cast<size_t>(HeadsPerMap(c->keys));
      HeadJob& job = c->jobs.back();
      job.q_full = memory.places(memory.q.as<Bf16>());
      job.q_full_stride = options.head_dim;
      job.rebuilt = {.keys = std::span(c->rebuilt_keys).subspan(i * n_joined, n_joined),
                     .values = {},
                     .outputs = {},
                     .head_dim = options.head_dim / static_cast<int>(n_joined)};
      if (n_joined > 1) {
        job.rebuilt.values = std::span(c->rebuilt_values).subspan(i * n_joined, n_joined);
        job.rebuilt.outputs = std::span(c->rebuilt_outputs).subspan(i * n_joined, n_joined);
      }
    }
    if (!c->maps.empty()) {
      c->jobs.back().q_stride = options.head_dim;
      c->jobs.back().latents = {
          .map = c->maps[i].id(), .key_dim = options.head_dim, .rotation = rotation};
    }
    const bool has_coded_rows = c->layout.CodesOpenRows();
    if (c->extents.empty() && !has_coded_rows) continue;
    SealedHead& packed = c->jobs.back().packed;
    packed = {.format = c->layout.seal->format,
              .storage = c->layout.storages.empty() ? HeadStorage() : c->layout.storages[i],
              .kv_head_idx = static_cast<int>(head),
              .n_kv_heads = options.n_kv_heads,
              .runs = std::span(c->runs).subspan(i * c->extents.size(), c->extents.size())};
    if (has_coded_rows) {
      const int n_sealed = static_cast<int>(SealedBlocksOf(*c));
      packed.open = {.first_block = n_sealed,
                     .n_blocks = static_cast<int>(BlocksOf(c->lengths[i])) - n_sealed};
    }
    if (!c->codebooks.empty()) packed.codebooks = c->codebooks[i / options.n_kv_heads].id();
    if (c->maps.empty()) packed.rotation = rotation;
    for (int g = 0; g < options.n_kv_heads; ++g) {
      packed.layer_rank_v += c->layout.shapes[i - head + g].rank_v;
    }
  }
}

}  // namespace

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

int64_t AllBlockBytes(const AttentionCase& c) {
  int64_t n_bytes = 0;
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) n_bytes += BlockBytesOfHead(c, i);
  return n_bytes;
}

AttentionBenchOptions JoinedShapes(AttentionBenchOptions options, int heads_per_map) {
  options.n_kv_heads /= heads_per_map;
  options.head_dim *= heads_per_map;
  return options;
}

AttentionCase MakeCase(const AttentionBenchOptions& of_model, BenchPhase phase, int context,
                       const BenchCache& spec) {
  const AttentionBenchOptions options = JoinedShapes(of_model, HeadsPerMap(spec.keys));
  AttentionCase c;
  c.keys = spec.keys;
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
    c.n_layers =
        options.n_layers > 0
            ? options.n_layers
            : static_cast<int>((kReadWorkingSetBytes + PayloadBytes(c) - 1) / PayloadBytes(c));
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
    const int key_width = TurnWhenRead(c.keys) ? of_model.head_dim : shape.rank_k;
    int n_dots = key_width + 2 * TurningPairs(c.keys) + shape.rank_v;
    // Many rows may meet blocks that are made of the model's rows again.
    if (!is_decode && CanBeRebuilt(c.keys)) n_dots = std::min(n_dots, 2 * of_model.head_dim);
    c.row.flops += 2.0 * n_dots / c.n_layers * n_visible * group;
  }
  return c;
}

// Makes the scales of tokens of open blocks 1; random bytes would be scales of all sizes.
void PlaceOpenScales(std::byte* memory, const AttentionCase& c) {
  constexpr auto kOne = std::byte{11 * 16};
  static_assert(ScaleOfByte(11 * 16) == 1);
  const int64_t n_head_blocks = BlocksOf(c.row.context);
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) {
    const BlockShape& shape = c.layout.shapes[i];
    if (!c.layout.CodesOpenRows()) continue;
    for (int64_t b = SealedBlocksOf(c); b < BlocksOf(c.lengths[i]); ++b) {
      const int64_t at = c.blocks[static_cast<int64_t>(i) * n_head_blocks + b].offset();
      std::fill_n(memory + at + CodedKeyScaleOffset(shape, 0),
                  (shape.has_one_side ? 1 : 2) * kBlockSize, kOne);
    }
  }
}

Status BuildCase(const AttentionBenchOptions& of_model, BenchMemory* memory, ThreadPool* pool,
                 AttentionCase* c) {
  const AttentionBenchOptions options = JoinedShapes(of_model, HeadsPerMap(c->keys));
  c->device = std::make_unique<CpuDevice>();
  PlaceBlocks(memory->blocks.data(), options, c);
  PlaceOpenScales(memory->blocks.data(), *c);
  KVL_RETURN_IF_ERROR(MakeRecords(options, pool, c));
  c->machine = memory->machine;
  MakeCodebooks(&c->machine->residents, c);
  MakeKeyMaps(options, &c->machine->residents, c);
  MakeTurningMean(options, c);
  KVL_RETURN_IF_ERROR(MakeFrameMaps(options, &c->machine->residents, c));
  KVL_RETURN_IF_ERROR(MakeRebuilders(options, &c->machine->residents, c));
  MakeJobs(options, *memory, c);
  return AddVotes(options, c);
}

void PlaceCounts(const AttentionCase& c, BenchMemory* memory) {
  const std::byte* next = c.counts.data();
  if (next == nullptr) return;
  const int64_t n_head_blocks = BlocksOf(c.row.context);
  for (size_t i = 0; i < c.layout.shapes.size(); ++i) {
    ForEachRun(c, i, [&](size_t r, const PackedShape& s) {
      const int64_t n_bytes = KeyCountBytes(s) + ValueCountBytes(s);
      for (int b = 0; b < s.n_blocks; ++b, next += n_bytes) {
        const int64_t block =
            static_cast<int64_t>(i) * n_head_blocks + c.extents[r].first_block + b;
        const int64_t at = c.blocks[block].offset();
        std::memcpy(memory->blocks.data() + at + KeyCountOffset(s), next,
                    static_cast<size_t>(n_bytes));
      }
    });
  }
}

}  // namespace kvlathe

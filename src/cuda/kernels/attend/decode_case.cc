#include "cuda/kernels/attend/decode_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>

#include "base/units.h"
#include "cuda/testing/device_array.h"
#include "machine/attention/plan.h"
#include "machine/object_id.h"

namespace kvlathe::cuda {
namespace {

std::vector<std::byte> BytesOf(const DecodeCase::Block& block) {
  return {block.bytes, block.bytes + block.n_bytes};
}

// Objects of a cache side by side, in reverse order and with gaps.
class Cache {
 public:
  uint32_t Add(const DecodeCase::Block& block) {
    if (block.bytes == nullptr) return 0xffffffffu;
    pieces_.push_back(block);
    const int64_t at = n_bytes_;
    places_.push_back(at);
    n_bytes_ += RoundUp(block.n_bytes, kDeviceAlignment) + kDeviceAlignment;
    return static_cast<uint32_t>(at / kDeviceAlignment);
  }
  std::vector<std::byte> Bytes() const {
    // With room for mistakes that read past the last one.
    std::vector<std::byte> bytes(n_bytes_ + (1 << 16), std::byte{0xff});
    for (size_t i = 0; i < pieces_.size(); ++i) {
      std::memcpy(bytes.data() + places_[i], pieces_[i].bytes, pieces_[i].n_bytes);
    }
    return bytes;
  }

 private:
  std::vector<DecodeCase::Block> pieces_;
  std::vector<int64_t> places_;
  int64_t n_bytes_ = 0;
};

template <typename T>
std::vector<T> OrOne(std::vector<T> items) {
  if (items.empty()) items.resize(1);
  return items;
}

const std::byte* AsBytes(const void* p) { return static_cast<const std::byte*>(p); }

struct Items {
  std::vector<DecodeItem> items;
  std::vector<DecodeSplit> splits;
  int64_t n_floats = 0;
};

Items ItemsOf(const DecodeCase& c, int n_parts) {
  Items all;
  const int most = kMostDecodeRows / c.gqa_group * c.gqa_group, width = c.width;
  const int n_blocks = (c.n_entries - c.kv_begin + kBlockSize - 1) / kBlockSize;
  for (int row = 0; row < c.n_rows; row += most) {
    const int n = std::min(most, c.n_rows - row), step = (n_blocks + n_parts - 1) / n_parts;
    const int64_t first = all.n_floats;
    for (int part = 0; part < n_parts; ++part) {
      DecodeItem item = {.row_begin = row, .n_rows = n};
      item.entry_begin =
          std::min(c.n_entries, c.kv_begin + part * step * kBlockSize) / kBlockSize * kBlockSize;
      item.entry_end = std::min(c.n_entries, c.kv_begin + (part + 1) * step * kBlockSize);
      if (n_parts > 1) {
        item.partial_offset = all.n_floats;
        all.n_floats += PartialFloats(n, width);
      }
      all.items.push_back(item);
    }
    if (n_parts > 1) {
      all.splits.push_back(
          {.row_begin = row, .n_rows = n, .n_parts = n_parts, .partial_offset = first});
    }
  }
  return all;
}

double ValueOf(Bf16 x) { return ToFloat(x); }

// What all products of a row have lost.
double LostOf(const DecodeCase& c, int row) {
  double lost = 0;
  for (int d = 0; d < static_cast<int>(c.lost_keys.size()); ++d) {
    lost += ValueOf(c.q_full[row * c.head_dim + d]) * c.lost_keys[d];
  }
  return lost;
}
double CappedScore(const DecodeCase& c, int row, double product) {
  if (c.score_cap == 0) return product * c.sm_scale;
  const double score = (product + LostOf(c, row)) * c.sm_scale;
  return c.score_cap * std::tanh(score / c.score_cap);
}

// Of a row: what it should be, and the deviations that roundings may cause.
struct Reference {
  std::vector<double> o, deviation;
};

Reference ReferenceOf(const DecodeCase& c, int row) {
  Reference ref = {.o = std::vector<double>(c.width),
                   .deviation = std::vector<double>(c.width, 1e-9)};
  const int token = row / c.gqa_group, end = c.first_visible + token;
  struct Seen {
    double score, score_error, unit;
    const double *v, *rounded;
    int n_channels;
  };
  std::vector<Seen> seen;
  std::vector<std::vector<double>> sinks;
  for (int s = 0; s < std::min(c.n_sinks, c.first_sinks_visible + token); ++s) {
    double score = 0;
    for (int d = 0; d < c.head_dim; ++d) {
      score += ValueOf(c.q_full[row * c.head_dim + d]) * ValueOf(c.sink_k[s * c.head_dim + d]);
    }
    std::vector<double>& v = sinks.emplace_back();
    for (int r = 0; r < c.width; ++r) v.push_back(ValueOf(c.sink_v[s * c.width + r]));
    seen.push_back({CappedScore(c, row, score), 1e-6, 0, nullptr, nullptr, c.width});
  }
  for (size_t s = 0; s < sinks.size(); ++s) seen[s].v = seen[s].rounded = sinks[s].data();
  const int begin = std::max(c.kv_begin, c.window > 0 ? end - c.window : 0);
  for (int t = begin; t < std::min(c.n_entries, end); ++t) {
    double score = c.added_score ? c.added_score(row, t) : 0, variance = 0, parts = std::abs(score);
    for (int r = 0; r < c.rank_k; ++r) {
      const double q = ValueOf(c.q[row * c.rank_k + r]);
      const double k = c.k[int64_t{t} * c.rank_k + r];
      const double rounded = c.k_rounded[int64_t{t} * c.rank_k + r];
      score += q * k;
      variance += q * q * rounded * rounded;
      parts += std::abs(q) * (std::abs(k) + rounded);
    }
    // Rounding to F16 moves a number by 2^-11 of it at most, to Bf16 by 2^-8; a probability of
    // codes is rounded, and again times a scale.
    const double unit = c.is_plain[t] ? 0x1p-8 / std::sqrt(3) : 0x1p-11 * std::sqrt(2.0 / 3);
    seen.push_back({CappedScore(c, row, score),
                    c.sm_scale * (0x1p-11 / std::sqrt(3) * std::sqrt(variance) + 1e-6 * parts),
                    unit, &c.v[int64_t{t} * c.rank_v], &c.v_rounded[int64_t{t} * c.rank_v],
                    c.rank_v});
  }
  if (!c.sink_logits.empty()) {
    const double lost = c.score_cap > 0 ? 0 : c.sm_scale * LostOf(c, row);
    seen.push_back({c.sink_logits[row % c.gqa_group] - lost, 1e-6, 0, nullptr, nullptr, 0});
  }
  if (seen.empty()) return ref;
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Seen& s : seen) top = std::max(top, s.score);
  for (Seen& s : seen) sum += s.score = std::exp(s.score - top);
  for (int r = 0; r < c.width; ++r) {
    double o = 0, common = 0, variance = 0, parts = 0;
    for (const Seen& s : seen) o += r < s.n_channels ? s.score / sum * s.v[r] : 0;
    for (const Seen& s : seen) {
      const double w = s.score / sum, value = r < s.n_channels ? s.v[r] : 0;
      const double rounded = (r < s.n_channels ? s.rounded[r] : 0) * s.unit;
      // The sum of probabilities is that of rounded ones, so errors of o itself cancel in part.
      variance += w * w * (rounded * rounded + s.unit * s.unit * o * o);
      common += w * std::abs(value - o) * (s.score_error + 2e-6);
      parts += w * std::abs(value);
    }
    ref.o[r] = o;
    ref.deviation[r] = common + std::sqrt(variance) + 1e-6 * parts + 1e-9;
    if (c.out_type == DType::kBf16) ref.deviation[r] += std::abs(o) * 0x1p-8 / 6;
  }
  return ref;
}

double WorstOf(const DecodeCase& c, const std::vector<std::byte>& out, int64_t head_stride) {
  double worst = 0;
  for (int row = 0; row < c.n_rows; ++row) {
    const Reference want = ReferenceOf(c, row);
    std::vector<float> got(head_stride);
    ConvertToFloat(c.out_type, out.data() + row * head_stride * SizeOf(c.out_type), head_stride,
                   got.data());
    for (int r = 0; r < head_stride; ++r) {
      const double o = r < c.width ? want.o[r] : 0, unit = r < c.width ? want.deviation[r] : 1e-30;
      const double off = std::abs(got[r] - o) / unit;
      worst = off <= 1e9 ? std::max(worst, off) : 1e9;  // NaN too
    }
  }
  return worst;
}

}  // namespace

double WorstDeviation(const DecodeCase& of_case, const DecodeRunning& running) {
  DecodeCase c = of_case;
  if (c.width == 0) c.width = c.rank_v;
  Cache cache;
  std::vector<uint32_t> places;
  for (const DecodeCase::Block& block : c.blocks) places.push_back(cache.Add(block));
  const DeviceArray<std::byte> memory(cache.Bytes());
  std::vector<DeviceArray<std::byte>*> records;
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> owned;
  const auto upload = [&](const DecodeCase::Block& record) -> const std::byte* {
    if (record.n_bytes == 0) return nullptr;
    owned.push_back(std::make_unique<DeviceArray<std::byte>>(BytesOf(record)));
    return owned.back()->data();
  };
  std::vector<AttendLayout> layouts;
  std::vector<DecodeRun> runs;
  for (const DecodeCase::Run& run : c.runs) {
    runs.push_back(run.run);
    runs.back().layout_idx = static_cast<int32_t>(layouts.size());
    runs.back().record = upload(run.record);
    runs.back().layer_record = upload(run.layer_record);
    layouts.push_back(run.layout);
  }
  AttendTables tables = MakeAttendTables();
  if (running.spoil_tables) running.spoil_tables(tables);
  const DeviceArray<uint32_t> device_places(places);
  const DeviceArray<DecodeRun> device_runs(runs);
  const DeviceArray<AttendLayout> device_layouts(layouts);
  const DeviceArray<AttendTables> device_tables(std::vector<AttendTables>{tables});
  const DeviceArray<Bf16> q(c.q), q_full(OrOne(c.q_full)), sink_k(OrOne(c.sink_k)),
      sink_v(OrOne(c.sink_v));
  const DeviceArray<float> logits(OrOne(c.sink_logits)), lost_keys(OrOne(c.lost_keys));
  const DeviceArray<float> mean(OrOne(c.mean)), angles(OrOne(c.angles)), cos(OrOne(c.cos)),
      sin(OrOne(c.sin));
  const int64_t head_stride = c.width + c.behind;
  DeviceArray<std::byte> out(
      std::vector<std::byte>(c.n_rows * head_stride * SizeOf(c.out_type), std::byte{0xff}));
  const Items shared = ItemsOf(c, running.n_parts);
  const int64_t q_full_width = std::ssize(c.q_full) / std::max(1, c.n_rows);
  DecodeJob job = {.base = memory.data(),
                   .q = AsBytes(q.data()),
                   .q_stride = c.rank_k,
                   .q_full = AsBytes(q_full.data()),
                   .q_full_stride = q_full_width,
                   .sink_k = AsBytes(sink_k.data()),
                   .sink_v = AsBytes(sink_v.data()),
                   .out = out.data(),
                   .out_stride = c.gqa_group * head_stride,
                   .out_head_stride = head_stride,
                   .mean = {.mean = mean.data(),
                            .angles = angles.data(),
                            .cos = cos.data(),
                            .sin = sin.data(),
                            .n_pairs = c.n_pairs,
                            .n_joined = c.n_joined,
                            .half = c.half,
                            .head_dim = static_cast<int32_t>(q_full_width / c.n_joined),
                            .first_position = c.first_position,
                            .way_back = c.way_back},
                   .out_type = c.out_type,
                   .rank_k = c.rank_k,
                   .rank_v = c.rank_v,
                   .width = c.width,
                   .head_dim = c.head_dim,
                   .gqa_group = c.gqa_group,
                   .first_visible = c.first_visible,
                   .window = c.window,
                   .n_sinks = c.n_sinks,
                   .first_sinks_visible = c.first_sinks_visible,
                   .sink_logits = c.sink_logits.empty() ? nullptr : logits.data(),
                   .lost_keys = c.lost_keys.empty() ? nullptr : lost_keys.data()};
  if (running.spoil_job) running.spoil_job(job);
  const DeviceArray<DecodeJob> jobs(std::vector<DecodeJob>{job});
  const DeviceArray<DecodeItem> items(shared.items);
  const DeviceArray<DecodeSplit> splits(OrOne(shared.splits));
  const DeviceArray<float> partials(std::max<int64_t>(1, shared.n_floats));
  AttendDecode(
      nullptr,
      {.places = device_places.data(),
       .runs = device_runs.data(),
       .jobs = jobs.data(),
       .items = items.data(),
       .n_items = static_cast<int32_t>(shared.items.size()),
       .layouts = device_layouts.data(),
       .tables = device_tables.data(),
       .splits = splits.data(),
       .n_splits = static_cast<int32_t>(shared.splits.size()),
       .partials = partials.data(),
       .sm_scale = c.sm_scale,
       .score_cap = running.spoil_cap ? running.spoil_cap(c.score_cap) : c.score_cap,
       .n_warps = running.n_warps,
       .max_rows = std::min(c.n_rows, kMostDecodeRows / c.gqa_group * c.gqa_group) <= 8 ? 8 : 16,
       .max_rank_k = c.rank_k,
       .max_rank_v = c.rank_v,
       .max_sinks = c.n_sinks,
       .max_pairs = c.n_pairs});
  return WorstOf(c, out.Download(), head_stride);
}

DecodeCase CaseOf(const AttendProblem& problem) {
  const AttendShape& s = problem.shape;
  DecodeCase c = {.rank_k = s.rank_k,
                  .rank_v = s.rank_v,
                  .gqa_group = s.gqa_group,
                  .n_rows = problem.n_rows,
                  .kv_begin = s.kv_begin,
                  .n_entries = s.kv_end,
                  .first_visible = s.first_visible,
                  .window = s.window == kNoWindow ? 0 : s.window,
                  .sm_scale = problem.SmScale(),
                  .k = problem.k.values,
                  .v = problem.v.values,
                  .k_rounded = std::vector<double>(problem.k.values.size()),
                  .v_rounded = problem.v.values,
                  .is_plain = std::vector<bool>(s.kv_end, true)};
  for (int row = 0; row < problem.n_rows; ++row) {
    for (int r = 0; r < s.rank_k; ++r) {
      c.q.push_back(ToBf16(static_cast<float>(problem.q.values[row * problem.q_stride + r])));
    }
  }
  for (const std::byte* block : problem.blocks) {
    c.blocks.push_back({block, BlockBytes(problem.block_shape)});
  }
  c.runs = {{.run = {.n_blocks = static_cast<int32_t>(c.blocks.size())},
             .layout = PlainLayout(problem.block_shape)}};
  return c;
}

DecodeCase CaseOf(const PackedProblem& problem) {
  const PackedCase& of = problem.c;
  DecodeCase c = {.rank_k = of.rank_k,
                  .rank_v = of.rank_v,
                  .gqa_group = of.gqa_group,
                  .n_rows = problem.n_rows,
                  .kv_begin = of.kv_begin,
                  .n_entries = problem.KvEnd(),
                  .first_visible = problem.FirstVisible(),
                  .window = of.window == kNoWindow ? 0 : of.window,
                  .sm_scale = problem.SmScale(),
                  .q = problem.q_bf16,
                  .k = problem.k.values,
                  .v = problem.v.values,
                  .k_rounded = problem.k.rounded,
                  .v_rounded = problem.v.parts};
  for (int64_t i = 0; i < std::ssize(c.k); ++i) c.k_rounded[i] += std::abs(c.k[i]) * 0;
  for (int t = 0; t < problem.n_entries; ++t) c.is_plain.push_back(t >= problem.n_sealed);
  for (const std::byte* block : problem.blocks) {
    int64_t n_bytes = 0;
    for (const TestRecord& record : problem.memory) {
      if (const_cast<TestRecord&>(record).data() == block) n_bytes = record.n_bytes();
    }
    c.blocks.push_back({block, n_bytes});
  }
  int first = -of.hidden_blocks;
  for (const PackedRun& run : problem.runs) {
    const PackedShape shape = MakePackedShape(
        of.format, problem.shape, {},
        {.n_kv_heads = 3, .layer_rank_v = problem.LayerRank(), .n_blocks = run.n_blocks});
    c.runs.push_back({.run = {.first_block = first, .n_blocks = run.n_blocks},
                      .layout = LayoutOfRun(shape).value(),
                      .record = {run.record, RunRecordBytes(shape)},
                      .layer_record = {run.layer_record, LayerRecordBytes(shape)}});
    first += run.n_blocks;
  }
  c.runs.push_back(
      {.run = {.first_block = first, .n_blocks = 1 << 20}, .layout = PlainLayout(problem.shape)});
  return c;
}

DecodeCase CaseOf(const SplitProblem& p, int n_tokens, int gqa_group, int window) {
  const int n = static_cast<int>(std::ssize(p.k)) / p.shape.rank_k;
  const int n_sealed = p.head.n_blocks * kBlockSize;
  DecodeCase c = {.rank_k = p.shape.rank_k,
                  .rank_v = p.shape.rank_v,
                  .gqa_group = gqa_group,
                  .n_rows = n_tokens * gqa_group,
                  .n_entries = n,
                  .first_visible = n - n_tokens + 1,
                  .window = window,
                  .sm_scale = 1 / std::sqrt(static_cast<float>(p.shape.rank_k)),
                  .k = {p.k.begin(), p.k.end()},
                  .v = {p.v.begin(), p.v.end()}};
  Random random(5);
  for (int i = 0; i < c.n_rows * c.rank_k; ++i) {
    c.q.push_back(ToBf16(static_cast<float>(random.Normal())));
  }
  for (int t = 0; t < n; ++t) {
    c.is_plain.push_back(t >= n_sealed && !p.head.has_coded_rows);
    if (t >= n_sealed) continue;
    for (int r = 0; r < c.rank_k; ++r) c.k[t * c.rank_k + r] = p.Decoded(true, t, r);
    for (int r = 0; r < c.rank_v; ++r) c.v[t * c.rank_v + r] = p.Decoded(false, t, r);
  }
  c.k_rounded.resize(c.k.size());
  c.v_rounded = c.v;
  for (size_t b = 0; b < p.blocks.size(); ++b) {
    const bool is_sealed = static_cast<int>(b) < p.head.n_blocks;
    c.blocks.push_back({p.blocks[b], is_sealed ? PackedBlockBytes(p.packed_shape)
                                               : OpenBlockBytes(p.format.codec, p.shape)});
  }
  c.runs = {{.run = {.n_blocks = p.head.n_blocks}, .layout = LayoutOfRun(p.packed_shape).value()},
            {.run = {.first_block = p.head.n_blocks, .n_blocks = 1 << 20},
             .layout = p.head.has_coded_rows ? CodedLayout(p.shape) : PlainLayout(p.shape)}};
  return c;
}

}  // namespace kvlathe::cuda

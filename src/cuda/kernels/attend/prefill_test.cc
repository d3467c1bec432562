// Attention of many rows on a GPU against sums in double (cpu/kernels/testing/attend_ref.h), for
// blocks of every kind.
#include "cuda/kernels/attend/prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/testing/attend_packed_problem.h"
#include "cpu/kernels/testing/attend_problem.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "cuda/attention/expand_runs.h"
#include "cuda/testing/device_array.h"
#include "machine/attention/plan.h"

namespace kvlathe::cuda {
namespace {

// Objects of the host, which lie on the GPU once Upload was called.
class Arena {
 public:
  int64_t Add(const std::byte* from, int64_t n_bytes) {
    const auto [at, is_new] = places_.try_emplace(from, std::ssize(bytes_));
    if (!is_new) return at->second;
    bytes_.insert(bytes_.end(), from, from + n_bytes);
    bytes_.resize((bytes_.size() + 63) / 64 * 64, std::byte{0xff});
    return at->second;
  }
  void Upload() { device_ = std::make_unique<DeviceArray<std::byte>>(bytes_); }
  const std::byte* base() const { return device_->data(); }

 private:
  std::map<const std::byte*, int64_t> places_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<DeviceArray<std::byte>> device_;
};

// A job of one head. Pointers are the host's.
struct Problem {
  BlockShape shape;
  std::vector<const std::byte*> blocks;
  const PackedHead* packed = nullptr;
  int gqa_group = 1;
  std::vector<uint16_t> q;  // Bf16
  int64_t q_stride = 0;
  AttendRefParams reference;  // with what blocks and queries stand for
  // The magnitudes that are rounded where a number of K and of V is made of codes; empty where
  // none are.
  std::vector<double> k_parts, v_parts;
};

// Where rows are split, and into what.
struct Split {
  int rows = kMostPromptRows;  // of an item, whole tokens
  int n_parts = 1;             // of the entries
};

struct Output {
  std::vector<float> o, row_max, row_sum;  // row_sum is empty where items finished
};

SealedRun IdsOf(const PackedRun& run) {
  return {.first_block = run.first_block,
          .n_blocks = run.n_blocks,
          .is_prompt = run.is_prompt,
          .is_repaired = run.is_repaired,
          .entry_class = run.entry_class};
}

SealedHead IdsOf(const PackedHead& head) {
  SealedHead ids = {.format = head.format,
                    .storage = head.storage,
                    .kv_head_idx = head.kv_head_idx,
                    .n_kv_heads = head.n_kv_heads,
                    .layer_rank_v = head.layer_rank_v};
  ids.rotation.half = head.rotation.half;
  return ids;
}

// The problem on the GPU.
class OnDevice {
 public:
  explicit OnDevice(const Problem& problem) : problem_(problem), q_(problem.q), blocks_(Places()) {
    MakeRuns();
  }

  PromptHead Head() const {
    const AttendRefParams& r = problem_.reference;
    return {.rank_k = problem_.shape.rank_k,
            .rank_v = problem_.shape.rank_v,
            .width = problem_.shape.rank_v,
            .gqa_group = problem_.gqa_group,
            .stored_rank_k = problem_.shape.rank_k,
            .q = q_.data(),
            .q_stride = problem_.q_stride,
            .q_token_stride = problem_.gqa_group * problem_.q_stride,
            .blocks = blocks_.data(),
            .runs = runs_ == nullptr ? nullptr : runs_->data(),
            .n_runs = runs_ == nullptr ? 0 : static_cast<int>(runs_->size()),
            .first_visible = r.first_visible,
            .window = r.window == kNoWindow ? 0 : r.window};
  }
  const std::byte* base() const { return arena_.base(); }

 private:
  PackedShape ShapeOf(const PackedRun& run) const {
    const PackedHead& head = *problem_.packed;
    return MakePackedShape(head.format, problem_.shape, head.storage,
                           {.n_kv_heads = head.n_kv_heads,
                            .layer_rank_v = head.layer_rank_v,
                            .n_blocks = run.n_blocks,
                            .is_prompt = run.is_prompt,
                            .is_repaired = run.is_repaired,
                            .entry_class = run.entry_class});
  }
  int64_t BytesOfBlock(int block) const {
    if (problem_.packed == nullptr) return BlockBytes(problem_.shape);
    int idx = 0;
    const PackedRun* const run = FindRunOf(block, &idx);
    if (run == nullptr) return BlockBytes(problem_.shape);
    if (run->is_open) return OpenBlockBytes(problem_.packed->format.codec, problem_.shape);
    return PackedBlockBytes(ShapeOf(*run));
  }
  const PackedRun* FindRunOf(int block, int* idx) const {
    const PackedHead& head = *problem_.packed;
    for (; *idx < head.n_runs; ++*idx) {
      if (block < head.runs[*idx].first_block + head.runs[*idx].n_blocks) return &head.runs[*idx];
    }
    return head.open.n_blocks > 0 ? &head.open : nullptr;
  }
  std::vector<uint32_t> Places() {
    std::vector<uint32_t> places;
    for (size_t b = 0; b < problem_.blocks.size(); ++b) {
      if (problem_.blocks[b] == nullptr) {
        places.push_back(0xffffffffu);
        continue;
      }
      const int64_t at = arena_.Add(problem_.blocks[b], BytesOfBlock(static_cast<int>(b)));
      places.push_back(static_cast<uint32_t>(at / 64));
    }
    if (problem_.packed != nullptr) {
      for (int i = 0; i < problem_.packed->n_runs; ++i) {
        const PackedRun& run = problem_.packed->runs[i];
        const PackedShape shape = ShapeOf(run);
        records_.push_back(arena_.Add(run.record, RunRecordBytes(shape)));
        layer_records_.push_back(run.layer_record == nullptr
                                     ? 0
                                     : arena_.Add(run.layer_record, LayerRecordBytes(shape)));
      }
    }
    arena_.Upload();
    return places;
  }
  void MakeRuns() {
    if (problem_.packed == nullptr) return;
    std::vector<ExpandRun> runs;
    for (int i = 0; i < problem_.packed->n_runs; ++i) {
      runs.push_back(MakeExpandRun(
          problem_.shape, IdsOf(*problem_.packed), IdsOf(problem_.packed->runs[i]),
          {.record = base() + records_[i], .layer_record = base() + layer_records_[i]}));
    }
    const PackedRun& open = problem_.packed->open;
    if (open.n_blocks > 0) {
      runs.push_back(MakeOpenRun(problem_.shape, {open.first_block, open.n_blocks}));
    }
    runs_ = std::make_unique<DeviceArray<ExpandRun>>(runs);
  }

  const Problem& problem_;
  Arena arena_;
  std::vector<int64_t> records_, layer_records_;
  DeviceArray<uint16_t> q_;
  DeviceArray<uint32_t> blocks_;
  std::unique_ptr<DeviceArray<ExpandRun>> runs_;
};

// Merges the parts of rows.
void MergePart(const float* partial, int n_rows, int rank_v, int first_row, Output* to) {
  const float* const maxima = partial + int64_t{n_rows} * rank_v;
  const float* const sums = maxima + (n_rows + 15) / 16 * 16;
  for (int row = 0; row < n_rows; ++row) {
    if (sums[row] == 0) continue;
    const int at = first_row + row;
    const float max = std::max(to->row_max[at], maxima[row]);
    const float old = std::exp(to->row_max[at] - max), more = std::exp(maxima[row] - max);
    to->row_max[at] = max;
    to->row_sum[at] = to->row_sum[at] * old + sums[row] * more;
    for (int r = 0; r < rank_v; ++r) {
      float& o = to->o[at * rank_v + r];
      o = o * old + partial[row * rank_v + r] * more;
    }
  }
}

std::vector<PromptItem> ItemsOf(const Problem& problem, const Split& split, int64_t* n_floats) {
  const int n_rows = problem.reference.n_rows;
  const int n_blocks = static_cast<int>(problem.blocks.size());
  const int group = problem.gqa_group, rows = split.rows / group * group;
  std::vector<PromptItem> items;
  for (int row = 0; row < n_rows; row += rows) {
    for (int part = 0; part < split.n_parts; ++part) {
      const int first = n_blocks * part / split.n_parts * kBlockSize;
      const int last = n_blocks * (part + 1) / split.n_parts * kBlockSize;
      PromptItem item = {.row_begin = row,
                         .n_rows = std::min(rows, n_rows - row),
                         .entry_begin = std::max(first, problem.reference.kv_begin),
                         .entry_end = std::min(last, problem.reference.kv_end)};
      if (split.n_parts > 1) {
        item.partial_offset = *n_floats;
        *n_floats += PartialFloats(item.n_rows, problem.shape.rank_v);
      }
      items.push_back(item);
    }
  }
  return items;
}

Output Run(const Problem& problem, const Split& split) {
  const OnDevice on_device(problem);
  const int n_rows = problem.reference.n_rows, rank_v = problem.shape.rank_v;
  PromptHead head = on_device.Head();
  DeviceArray<float> o(int64_t{n_rows} * rank_v);
  head.out = o.data();
  head.out_stride = int64_t{problem.gqa_group} * rank_v;
  head.out_head_stride = rank_v;
  int64_t n_floats = 0;
  const std::vector<PromptItem> list = ItemsOf(problem, split, &n_floats);
  const DeviceArray<PromptItem> items(list);
  const DeviceArray<PromptHead> heads(std::vector<PromptHead>{head});
  const DeviceArray<float> partials(std::max<int64_t>(n_floats, 1));
  AttendPrompt(nullptr, {.base = on_device.base(),
                         .heads = heads.data(),
                         .items = items.data(),
                         .n_items = static_cast<int>(list.size()),
                         .sm_scale = static_cast<float>(problem.reference.sm_scale),
                         .partials = partials.data(),
                         .most_rank_k = problem.shape.rank_k,
                         .most_rank_v = rank_v,
                         .most_width = rank_v,
                         .most_rows = std::min(split.rows, n_rows),
                         .tables = MakeWindowTables()});
  if (n_floats == 0) return {o.Download(), {}, {}};
  const std::vector<float> parts = partials.Download();
  Output merged = {std::vector<float>(n_rows * rank_v),
                   std::vector<float>(n_rows, -std::numeric_limits<float>::infinity()),
                   std::vector<float>(n_rows)};
  for (const PromptItem& item : list) {
    MergePart(parts.data() + item.partial_offset, item.n_rows, rank_v, item.row_begin, &merged);
  }
  for (int row = 0; row < n_rows; ++row) {
    for (int r = 0; r < rank_v && merged.row_sum[row] > 0; ++r) {
      merged.o[row * rank_v + r] /= merged.row_sum[row];
    }
  }
  return merged;
}

// The largest relative error of what is rounded to Bf16. Numbers that are made of codes are rounded
// up to three times, but their parts are rarely as large as their sum.
constexpr double kRounding = 0x1p-8;

// Four deviations of a row's scores under independent errors of the numbers of K.
double ScoreError(const Problem& problem, int row) {
  const AttendRefParams& r = problem.reference;
  double most = 0, largest = 0;
  for (int t = r.kv_begin; t < r.kv_end; ++t) {
    double squares = 0, score = 0;
    for (int c = 0; c < r.rank_k; ++c) {
      const size_t at = size_t(t) * r.rank_k + c;
      const double q = r.q[size_t(row) * r.rank_k + c];
      score += q * r.k[at];
      const double part = problem.k_parts.empty() ? 0 : q * problem.k_parts[at];
      squares += part * part;
    }
    most = std::max(most, squares);
    largest = std::max(largest, std::abs(score));
  }
  return r.sm_scale * (4 / std::sqrt(3.0) * kRounding * std::sqrt(most) + 2e-6 * largest);
}

// Weights are rounded to Bf16, and scores move by ScoreError: a weight by twice that, because the
// sum moves too. What the numbers of V lose comes on top.
void ExpectRight(const Problem& problem, const Split& split, const std::string& what) {
  const Output got = Run(problem, split);
  const AttendRefResult want = AttendRef(problem.reference);
  AttendRefParams of_parts = problem.reference;
  if (!problem.v_parts.empty()) of_parts.v = problem.v_parts;
  const AttendRefResult parts = AttendRef(of_parts);
  const int rank_v = problem.shape.rank_v;
  for (int row = 0; row < problem.reference.n_rows; ++row) {
    const double score_error = ScoreError(problem, row);
    if (!got.row_sum.empty() && want.row_sum[row] > 0) {
      ASSERT_NEAR(got.row_max[row], want.row_max[row], score_error + 1e-5)
          << what << " row " << row;
      ASSERT_NEAR(got.row_sum[row] / want.row_sum[row], 1, 2 * score_error + 1e-4)
          << what << " row " << row;
    }
    for (int r = 0; r < rank_v; ++r) {
      const size_t at = size_t(row) * rank_v + r;
      double allowed = (kRounding + 2 * score_error) * want.o_abs[at] + 1e-6;
      if (!problem.v_parts.empty()) allowed += kRounding * parts.o_abs[at];
      ASSERT_NEAR(got.o[at], want.o[at], allowed) << what << " row " << row << " channel " << r;
    }
  }
}

std::vector<uint16_t> BitsOf(const std::vector<double>& values) {
  std::vector<uint16_t> bits;
  for (const double x : values) bits.push_back(ToBf16(static_cast<float>(x)).bits);
  return bits;
}

Problem PlainProblem(const AttendProblem& p) {
  Problem problem = {.shape = p.block_shape,
                     .blocks = {p.blocks.begin(), p.blocks.end()},
                     .gqa_group = p.shape.gqa_group,
                     .q = BitsOf(p.q.values),
                     .q_stride = p.q_stride};
  problem.reference = {.n_rows = p.n_rows,
                       .gqa_group = p.shape.gqa_group,
                       .rank_k = p.shape.rank_k,
                       .rank_v = p.shape.rank_v,
                       .kv_begin = p.shape.kv_begin,
                       .kv_end = p.shape.kv_end,
                       .first_visible = p.shape.first_visible,
                       .window = p.shape.window,
                       .sm_scale = p.SmScale(),
                       .q = {},
                       .k = p.k.values,
                       .v = p.v.values};
  for (int row = 0; row < p.n_rows; ++row) {
    const auto from = p.q.values.begin() + row * p.q_stride;
    problem.reference.q.insert(problem.reference.q.end(), from, from + p.shape.rank_k);
  }
  return problem;
}

void CheckPlain(const AttendShape& shape, const Split& split = {}) {
  const AttendProblem problem(shape, DType::kBf16, 7);
  ExpectRight(PlainProblem(problem), split, shape.Describe());
}

TEST(PrefillTest, PlainBlocksOfEveryRank) {
  for (const auto& [rank_k, rank_v] : std::vector<std::pair<int, int>>{{16, 16},
                                                                       {64, 64},
                                                                       {48, 80},
                                                                       {128, 128},
                                                                       {112, 160},
                                                                       {256, 256},
                                                                       {32, 512},
                                                                       {512, 16}}) {
    CheckPlain(
        {.rank_k = rank_k, .rank_v = rank_v, .n_tokens = 40, .kv_end = 150, .first_visible = 111});
  }
}

TEST(PrefillTest, PlainBlocksForRowsOfEveryCount) {
  for (const int n_tokens : {1, 2, 15, 17, 64, 86}) {
    for (const int group : {1, 3}) {
      CheckPlain({.n_tokens = n_tokens,
                  .gqa_group = group,
                  .kv_end = 200,
                  .first_visible = 201 - n_tokens},
                 {.rows = 48});
    }
  }
}

TEST(PrefillTest, TokensMaySeeNothingOrAWindow) {
  CheckPlain({.n_tokens = 70, .gqa_group = 2, .kv_end = 64, .first_visible = -5});
  for (const int window : {1, 63, 64, 100}) {
    CheckPlain({.n_tokens = 33,
                .gqa_group = 3,
                .kv_begin = 64,
                .kv_end = 300,
                .first_visible = 268,
                .window = window},
               {.rows = 60});
  }
}

TEST(PrefillTest, PartsMerge) {
  for (const int n_tokens : {1, 20}) {
    CheckPlain({.n_tokens = n_tokens,
                .gqa_group = 4,
                .kv_end = 330,
                .first_visible = 331 - n_tokens,
                .q_sigma = 4},
               {.rows = 64, .n_parts = 3});
  }
}

// A head with a sink and outputs in Bf16 with room behind them.
struct SinkShape {
  int n, head_dim, width, visible, window;
};

struct SinkOutput {
  std::vector<uint16_t> out;  // [n_rows, kHeadStride]
  std::vector<double> want, want_abs;
};
constexpr int kHeadStride = 150;

AttendRefParams SinkReference(const Problem& problem, const SinkShape& sink, Random& random) {
  AttendRefParams r = {
      .n_rows = problem.reference.n_rows,
      .gqa_group = problem.gqa_group,
      .rank_k = sink.head_dim,
      .rank_v = sink.width,
      .kv_end = sink.n,
      .first_visible = sink.visible,
      .window = sink.window == 0 ? kNoWindow : sink.window,
      .sm_scale = problem.reference.sm_scale,
      .q = RandomRows(problem.reference.n_rows * sink.head_dim, DType::kBf16, 1, 0, random).values,
      .k = RandomRows(sink.n * sink.head_dim, DType::kBf16, 1, 0, random).values,
      .v = RandomRows(sink.n * sink.width, DType::kBf16, 1, 0, random).values};
  return r;
}

SinkOutput RunWithSink(const Problem& problem, const SinkShape& sink) {
  Random random(2);
  const AttendRefParams of_sink = SinkReference(problem, sink, random);
  const OnDevice on_device(problem);
  const DeviceArray<uint16_t> q(BitsOf(of_sink.q)), k(BitsOf(of_sink.k)), v(BitsOf(of_sink.v));
  const int n_rows = problem.reference.n_rows, rank_v = problem.shape.rank_v;
  const DeviceArray<uint16_t> out(int64_t{n_rows} * kHeadStride);
  PromptHead head = on_device.Head();
  head.width = sink.width;
  head.q_full = q.data();
  head.q_full_stride = head.head_dim = sink.head_dim;
  head.q_full_token_stride = problem.gqa_group * head.q_full_stride;
  head.sink_k = k.data();
  head.sink_v = v.data();
  head.n_sinks = sink.n;
  head.sinks_visible = sink.visible;
  head.sink_window = sink.window;
  head.out = out.data();
  head.out_type = DType::kBf16;
  head.out_stride = int64_t{problem.gqa_group} * kHeadStride;
  head.out_head_stride = kHeadStride;
  head.n_cleared = kHeadStride - sink.width;
  const DeviceArray<PromptHead> heads(std::vector<PromptHead>{head});
  const DeviceArray<PromptItem> items(
      std::vector<PromptItem>{{.n_rows = n_rows, .entry_end = problem.reference.kv_end}});
  AttendPrompt(nullptr, {.base = on_device.base(),
                         .heads = heads.data(),
                         .items = items.data(),
                         .n_items = 1,
                         .sm_scale = static_cast<float>(of_sink.sm_scale),
                         .most_rank_k = std::max(problem.shape.rank_k, sink.head_dim),
                         .most_rank_v = sink.width,
                         .most_width = sink.width,
                         .most_rows = n_rows});
  SinkOutput output = {out.Download(), {}, {}};
  const AttendRefResult a = AttendRef(problem.reference), b = AttendRef(of_sink);
  for (int row = 0; row < n_rows; ++row) {
    const double max = std::max(a.row_max[row], b.row_max[row]);
    const double of_a = a.row_sum[row] == 0 ? 0 : a.row_sum[row] * std::exp(a.row_max[row] - max);
    const double of_b = b.row_sum[row] == 0 ? 0 : b.row_sum[row] * std::exp(b.row_max[row] - max);
    const double sum = of_a + of_b == 0 ? 1 : of_a + of_b;
    for (int r = 0; r < sink.width; ++r) {
      const int at_a = row * rank_v + r, at_b = row * sink.width + r;
      const double x = r < rank_v ? a.o[at_a] : 0, x_abs = r < rank_v ? a.o_abs[at_a] : 0;
      output.want.push_back((of_a * x + of_b * b.o[at_b]) / sum);
      output.want_abs.push_back((of_a * x_abs + of_b * b.o_abs[at_b]) / sum);
    }
  }
  return output;
}

TEST(PrefillTest, SinksAndWidths) {
  const AttendShape shape = {.rank_k = 48,
                             .rank_v = 32,
                             .n_tokens = 20,
                             .gqa_group = 3,
                             .kv_end = 100,
                             .first_visible = 81};
  AttendShape starting = shape;  // the sink fills in this step
  starting.first_visible = -4;
  for (const auto& [blocks, sink] :
       std::vector<std::pair<AttendShape, SinkShape>>{{shape, {4, 64, 32, 4, 0}},
                                                      {shape, {70, 80, 144, 90, 0}},
                                                      {shape, {70, 32, 48, 140, 90}},
                                                      {starting, {5, 64, 64, 1, 0}},
                                                      {starting, {5, 64, 64, -1, 0}}}) {
    const AttendProblem p(blocks, DType::kBf16, 7);
    const Problem problem = PlainProblem(p);
    const SinkOutput got = RunWithSink(problem, sink);
    for (int row = 0; row < p.n_rows; ++row) {
      for (int r = 0; r < kHeadStride; ++r) {
        const float x = ToFloat(Bf16{got.out[row * kHeadStride + r]});
        if (r >= sink.width) {
          ASSERT_EQ(x, 0) << row << " " << r;
          continue;
        }
        const int at = row * sink.width + r;
        // The output is rounded as well.
        const double allowed = kRounding * (got.want_abs[at] + std::abs(got.want[at])) + 1e-6;
        ASSERT_NEAR(x, got.want[at], allowed) << sink.n << " sinks, row " << row << " " << r;
      }
    }
  }
}

// --- Blocks of codes. ---

Problem CodedProblem(const PackedProblem& p) {
  Problem problem = {.shape = p.shape,
                     .blocks = p.blocks,
                     .packed = &p.head,
                     .gqa_group = p.c.gqa_group,
                     .q = {},
                     .q_stride = p.c.rank_k,
                     .reference = {},
                     .k_parts = p.k.parts,
                     .v_parts = p.v.parts};
  for (const Bf16 x : p.q_bf16) problem.q.push_back(x.bits);
  problem.reference = {.n_rows = p.n_rows,
                       .gqa_group = p.c.gqa_group,
                       .rank_k = p.c.rank_k,
                       .rank_v = p.c.rank_v,
                       .kv_begin = p.c.kv_begin,
                       .kv_end = p.KvEnd(),
                       .first_visible = p.FirstVisible(),
                       .window = p.c.window,
                       .sm_scale = p.SmScale(),
                       .q = {p.q_stored.begin(), p.q_stored.end()},
                       .k = p.k.values,
                       .v = p.v.values};
  return problem;
}

void CheckCoded(const PackedCase& c, uint64_t seed, const Split& split = {}) {
  const PackedProblem problem(c, DType::kBf16, seed);
  ExpectRight(CodedProblem(problem), split, c.Describe());
}

PackedSide Numbers(int bits, ScaleSharing sharing, int group, bool is_symmetric = false) {
  return {.bits = bits, .sharing = sharing, .group = group, .is_symmetric = is_symmetric};
}

TEST(PrefillTest, NumbersOfEveryWidthAndSharing) {
  std::vector<PackedSide> keys, values;
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {16, 64, 128, 0}) {
      keys.push_back(Numbers(bits, ScaleSharing::kChannel, group));
      values.push_back(Numbers(bits, ScaleSharing::kToken, group));
    }
    keys.push_back(Numbers(bits, ScaleSharing::kToken, 32));
    values.push_back(Numbers(bits, ScaleSharing::kTokenLayer, 0));
  }
  for (const int bits : {4, 8}) {
    keys.push_back(Numbers(bits, ScaleSharing::kToken, 32, true));
    values.push_back(Numbers(bits, ScaleSharing::kToken, 0, true));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    PackedCase c;
    c.format.codec = UniformCodec{keys[i], values[values.size() - 1 - i]};
    c.runs = {{2, true, false}, {2, true}, {1, false}};
    c.rank_k = i % 3 == 0 ? 80 : 64;
    c.rank_v = i % 2 == 0 ? 48 : 128;
    c.n_plain = 30;
    c.n_tokens = 20;
    c.gqa_group = 1 + static_cast<int>(i) % 3;
    CheckCoded(c, i);
    if (HasFatalFailure()) return;
  }
}

TEST(PrefillTest, RepairsOfRuns) {
  for (const int lowrank : {0, 3}) {
    for (const double share : {0.0, 0.06}) {
      for (const bool packs : {false, true}) {
        PackedCase c;
        c.format.codec = UniformCodec{Numbers(4, ScaleSharing::kChannel, 64),
                                      Numbers(3, ScaleSharing::kTokenLayer, 0)};
        c.format.prompt_rank = lowrank;
        c.format.decode_rank = 2;
        c.format.sparse_share = share;
        c.packs_exact = packs;
        c.rank_k = packs ? 256 : 48;
        c.rank_v = 80;
        c.runs = {{2, true}, {1, true, false}, {1, false}};
        c.n_plain = 10;
        c.n_tokens = 5;
        c.hidden_blocks = 1;
        CheckCoded(c, lowrank + (packs ? 7 : 0));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Numbers of several signs and steps, of which one stands twice.
constexpr NamedTable kPrefillTable({0, 1, 3, 6, 12, 22, 37, 58, 0, -2, -4, -8, -15, -27, -41, -52},
                                   0.25f);

TEST(PrefillTest, TablesOfNumbers) {
  for (const int group : {16, 48, 256}) {
    PackedCase c;
    c.format.codec = TableCodec{&kPrefillTable, group};
    c.rank_k = 80;
    c.rank_v = 64;
    c.n_plain = 3;
    c.n_tokens = 18;
    c.gqa_group = 2;
    CheckCoded(c, group);
  }
}

TEST(PrefillTest, RunsAreSeenInPart) {
  for (int i = 0; i < 4; ++i) {
    PackedCase c;
    c.format.codec =
        UniformCodec{Numbers(4, ScaleSharing::kChannel, 64), Numbers(4, ScaleSharing::kToken, 32)};
    c.runs = {{3, true}, {2, false}};
    c.n_tokens = 33;
    c.kv_begin = i % 2 * 64;
    c.unseen = 20 * i;
    c.past_end = 7 * i;
    c.window = i == 3 ? 90 : kNoWindow;
    c.n_plain = i * 11;
    CheckCoded(c, i, {.rows = 32, .n_parts = 1 + i % 2});
  }
}

Problem CodedProblem(const SplitProblem& p, int n_tokens, int group, Random& random) {
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  const int n = static_cast<int>(p.k.size()) / rank_k, n_rows = n_tokens * group;
  Problem problem = {.shape = p.shape,
                     .blocks = p.blocks,
                     .packed = &p.packed_head,
                     .gqa_group = group,
                     .q = {},
                     .q_stride = rank_k,
                     .reference = {.n_rows = n_rows,
                                   .gqa_group = group,
                                   .rank_k = rank_k,
                                   .rank_v = rank_v,
                                   .kv_end = n,
                                   .first_visible = n - n_tokens + 1,
                                   .sm_scale = 1 / std::sqrt(static_cast<float>(rank_k)),
                                   .q = {},
                                   .k = {p.k.begin(), p.k.end()},
                                   .v = {p.v.begin(), p.v.end()}}};
  for (int i = 0; i < n_rows * rank_k; ++i) {
    const Bf16 x = ToBf16(static_cast<float>(random.Normal()));
    problem.q.push_back(x.bits);
    problem.reference.q.push_back(ToFloat(x));
  }
  for (int t = 0; t < p.head.n_blocks * kBlockSize; ++t) {
    for (int c = 0; c < rank_k; ++c) problem.reference.k[t * rank_k + c] = p.Decoded(true, t, c);
    for (int c = 0; c < rank_v; ++c) problem.reference.v[t * rank_v + c] = p.Decoded(false, t, c);
  }
  return problem;
}

// With residuals the reference is what the portable code reads, which other tests hold against the
// layout.
void ReadExpanded(const SplitProblem& p, Problem* problem) {
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  AttendParams params;
  params.shape = p.shape;
  params.packed = &p.packed_head;
  const PackedRunView view = ViewRun(params, p.run);
  std::vector<float> block(kBlockSize * (rank_k + rank_v));
  for (int t = 0; t < p.head.n_blocks * kBlockSize; ++t) {
    const int b = t / kBlockSize, i = t % kBlockSize;
    if (i == 0) ExpandPackedBlock(view, p.blocks[b], b, block.data());
    for (int c = 0; c < rank_k; ++c) {
      problem->reference.k[t * rank_k + c] = block[KeyOffset(i, c)];
    }
    for (int c = 0; c < rank_v; ++c) {
      problem->reference.v[t * rank_v + c] =
          block[kBlockSize * rank_k + ValueOffset(p.shape, i, c)];
    }
  }
  for (const double x : problem->reference.k) problem->k_parts.push_back(2 * std::abs(x) + 1);
  for (const double x : problem->reference.v) problem->v_parts.push_back(2 * std::abs(x) + 1);
}

TEST(PrefillTest, SplitBitsAndCodedRows) {
  Random random(3);
  for (SplitHead head : kSplitHeads) {
    for (const int kind : {0, 1, 2, 3}) {
      head.lowrank = kind == 1 ? 2 : 0;
      head.has_coded_rows = kind >= 2;
      head.has_one_side = kind == 3;
      SplitProblem p(head, DType::kBf16, 11);
      ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
      p.UsePacked();
      Problem problem = CodedProblem(p, 17, 2, random);
      if (head.lowrank > 0) ReadExpanded(p, &problem);
      ExpectRight(problem, {.rows = 32}, testing::PrintToString(head.k_channels));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvlathe::cuda

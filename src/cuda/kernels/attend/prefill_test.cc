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
  double key_error = 0;       // of a number of K that was expanded
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
            .q = q_.data(),
            .q_stride = problem_.q_stride,
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

// The largest error of a row's scores that independent errors of key_error in numbers of K make,
// four deviations of the uniform distribution.
double ScoreError(const Problem& problem, int row) {
  const AttendRefParams& r = problem.reference;
  double most = 0, largest = 0;
  for (int t = r.kv_begin; t < r.kv_end; ++t) {
    double squares = 0, score = 0;
    for (int c = 0; c < r.rank_k; ++c) {
      const double x = r.q[size_t(row) * r.rank_k + c] * r.k[size_t(t) * r.rank_k + c];
      squares += x * x;
      score += x;
    }
    most = std::max(most, squares);
    largest = std::max(largest, std::abs(score));
  }
  return r.sm_scale * (4 / std::sqrt(3.0) * problem.key_error * std::sqrt(most) + 2e-6 * largest);
}

// Weights and numbers of V are rounded to Bf16, whose relative error is 2^-9 at most, and scores
// move by ScoreError: a weight by twice that, because the sum moves too.
void ExpectRight(const Problem& problem, const Split& split, const std::string& what) {
  const Output got = Run(problem, split);
  const AttendRefResult want = AttendRef(problem.reference);
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
      const double allowed = (0x1p-8 + 2 * score_error) * want.o_abs[at] + 1e-6;
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

}  // namespace
}  // namespace kvlathe::cuda

// Attention of many rows on a GPU against sums in double (cpu/kernels/testing/attend_ref.h): plain
// blocks, sinks, windows, parts.
#include "cuda/kernels/attend/prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/testing/attend_problem.h"
#include "cuda/kernels/attend/prefill_case.h"

namespace kvlathe::cuda {
namespace {

std::vector<uint16_t> BitsOf(const std::vector<double>& values) {
  std::vector<uint16_t> bits;
  for (const double x : values) bits.push_back(ToBf16(static_cast<float>(x)).bits);
  return bits;
}

PromptProblem PlainProblem(const AttendProblem& p) {
  PromptProblem problem = {.shape = p.block_shape,
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

void CheckPlain(const AttendShape& shape, const PromptCut& split = {}) {
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

TEST(PrefillTest, ScoresAreCappedAndLogitsCount) {
  AttendShape starting = {.n_tokens = 30, .gqa_group = 3, .kv_end = 130, .first_visible = -5};
  AttendShape windowed = {.rank_k = 256,
                          .rank_v = 256,
                          .n_tokens = 33,
                          .gqa_group = 2,
                          .kv_end = 300,
                          .first_visible = 268,
                          .window = 100};
  starting.q_sigma = windowed.q_sigma = 4;
  for (const AttendShape& shape : {starting, windowed}) {
    const AttendProblem drawn(shape, DType::kBf16, 7);
    for (const double cap : {0.0, 1.5, 50.0}) {
      PromptProblem problem = PlainProblem(drawn);
      problem.reference.score_cap = cap;
      for (int n_parts = 1; n_parts <= 2; ++n_parts) {
        ExpectRight(problem, {.rows = 48, .n_parts = n_parts}, shape.Describe());
        problem.sink_logits = {30, -1.5f, -30};
      }
    }
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

AttendRefParams SinkReference(const PromptProblem& problem, const SinkShape& sink, Random& random) {
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

SinkOutput RunWithSink(const PromptProblem& problem, const SinkShape& sink) {
  Random random(2);
  const AttendRefParams of_sink = SinkReference(problem, sink, random);
  const PromptOnDevice on_device(problem);
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
    const PromptProblem problem = PlainProblem(p);
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

}  // namespace
}  // namespace kvlathe::cuda

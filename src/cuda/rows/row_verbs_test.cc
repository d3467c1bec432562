// Verbs on a GPU against those of the CPU: embeddings, products, norms and gates.
#include "cuda/rows/row_verbs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/rows/row_verbs_fixture.h"

namespace kvlathe {
namespace {

struct ProductCase {
  WeightType weights;
  DType rows;
  DType products;
  bool has_bias = false;
  bool accumulate = false;
  bool deterministic = false;
};

TEST_F(RowVerbsTest, Products) {
  constexpr auto kBf16 = DType::kBf16, kF32 = DType::kF32;
  const ProductCase cases[] = {
      {WeightType::kBf16, kBf16, kF32},
      {WeightType::kBf16, kBf16, kF32, true, true},
      {WeightType::kBf16, kBf16, kF32, true, false, true},
      {WeightType::kBf16, kBf16, kBf16},
      {WeightType::kBf16, kBf16, kBf16, true},
      {WeightType::kF32, kF32, kF32, true},
      {WeightType::kF32, kF32, kF32, false, true, true},
      {WeightType::kQ4_0, kBf16, kF32, true, true},
      {WeightType::kQ4_0, kBf16, kBf16, true, false, true},
      {WeightType::kQ4_0, kF32, kF32, true},
  };
  const int64_t n_out = 50, n_in = 96, y_stride = n_out + 2;
  for (const ProductCase& c : cases) {
    for (const int64_t n_rows : {1, 6, 19}) {
      const int64_t x_stride = n_in + (n_rows == 6 ? 3 : 4);
      SCOPED_TRACE(WeightTypeName(c.weights));
      verbs_.set_deterministic(c.deterministic);
      const auto body = [&](const Side& side, auto& verbs) {
        const Weight w = side.Matrix(Drawn(n_out * n_in, 1, 0.1f), n_out, c.weights);
        const MachineBuffer x = side.Put(Drawn(n_rows * x_stride, 2), c.rows);
        const MachineBuffer bias = side.Put(Drawn(n_out, 3));
        const MachineBuffer y = side.Put(Drawn(n_rows * y_stride, 4), c.products);
        verbs.Project({.w = w.id(),
                       .n_rows = n_rows,
                       .x = x.place(),
                       .x_stride = x_stride,
                       .x_type = c.rows,
                       .bias = c.has_bias ? bias.place() : ObjectPlace(),
                       .y = y.place(),
                       .y_stride = y_stride,
                       .y_type = c.products,
                       .accumulate = c.accumulate});
        return side.Get(y, n_rows * y_stride, c.products);
      };
      // The CPU rounds weights in blocks to BF16 for rows of BF16.
      const bool rounds_weights = HasBlocks(c.weights) && c.rows == kBf16;
      ExpectLikeCpu(body, c.products == kBf16 || rounds_weights ? kBf16Bound : kF32Bound);
    }
  }
}

// Weights that become plain numbers in more than one range of outputs.
TEST_F(RowVerbsTest, ProductsOfManyOutputs) {
  const int64_t n_out = 5000, n_in = 256, n_rows = 17;
  ASSERT_GT(n_out * n_in * 2, device_->n_bytes() / 64);
  const auto body = [&](const Side& side, auto& verbs) {
    const Weight w = side.Matrix(Drawn(n_out * n_in, 1, 0.1f), n_out, WeightType::kQ4_0);
    const MachineBuffer x = side.Put(Drawn(n_rows * n_in, 2), DType::kBf16);
    const MachineBuffer bias = side.Put(Drawn(n_out, 3));
    const MachineBuffer y = side.Put(Drawn(n_rows * n_out, 4));
    verbs.Project({.w = w.id(),
                   .n_rows = n_rows,
                   .x = x.place(),
                   .x_stride = n_in,
                   .x_type = DType::kBf16,
                   .bias = bias.place(),
                   .y = y.place(),
                   .y_stride = n_out});
    return side.Get(y, n_rows * n_out);
  };
  ExpectLikeCpu(body, kBf16Bound);
}

TEST_F(RowVerbsTest, TheStreamTellsOfMissingMemory) {
  const Side side = {*device_, residents_};
  const Weight w = side.Matrix(Drawn(8 * 32, 1), 8, WeightType::kBf16);
  const MachineBuffer x = side.Put(Drawn(32, 2), DType::kBf16), bias = side.Put(Drawn(8, 3));
  const MachineBuffer y = side.Put(Drawn(8, 4), DType::kBf16);
  const uint32_t all = device_->Allocate(device_->n_free_bytes());
  verbs_.Project({.w = w.id(),
                  .n_rows = 1,
                  .x = x.place(),
                  .x_stride = 32,
                  .x_type = DType::kBf16,
                  .bias = bias.place(),
                  .y = y.place(),
                  .y_stride = 8,
                  .y_type = DType::kBf16});
  EXPECT_EQ(stream_->Finish().code(), StatusCode::kResourceExhausted);
  device_->Free(all);
}

TEST_F(RowVerbsTest, ProductsOfHeads) {
  for (const auto& [type, weights] :
       {std::pair{DType::kBf16, WeightType::kBf16}, std::pair{DType::kF32, WeightType::kF32}}) {
    for (const int64_t n_tokens : {1, 5, 70}) {
      const int n_heads = 3, n_in = 24, n_out = 20;
      const auto body = [&](const Side& side, auto& verbs) {
        const MachineBuffer x = side.Put(Drawn(n_tokens * n_heads * n_in, 1), type);
        const MachineBuffer y = side.Put(Drawn(n_tokens * n_heads * n_out, 2), type);
        std::vector<Weight> maps;
        std::vector<HeadProductsPlan::Head> heads;
        for (int h = 0; h < n_heads; ++h) {
          maps.push_back(side.Matrix(Drawn(n_out * n_in, 3 + h, 0.2f), n_out, weights));
          heads.push_back({maps.back().id(), x.place() + h * n_in * SizeOf(type),
                           y.place() + h * n_out * SizeOf(type)});
        }
        verbs.ProjectHeads({.n_tokens = n_tokens,
                            .heads = heads,
                            .x_stride = n_heads * n_in,
                            .y_stride = n_heads * n_out,
                            .type = type});
        return side.Get(y, n_tokens * n_heads * n_out, type);
      };
      ExpectLikeCpu(body, type == DType::kBf16 ? kBf16Bound : kF32Bound);
    }
  }
}

TEST_F(RowVerbsTest, Norms) {
  const auto body = [](const Side& side, auto& verbs) {
    const int n_rows = 4, n_dims = 24;
    const MachineBuffer x = side.Put(Drawn(n_rows * 4 * n_dims, 1));
    const MachineBuffer weights = side.Put(Drawn(2 * n_dims, 2)), bias = side.Put(Drawn(n_dims, 3));
    const NormPlan first = {.x = x.place(),
                            .n_rows = n_rows,
                            .n_groups = 2,
                            .n_dims = n_dims,
                            .stride = 4 * n_dims,
                            .weight = weights.place(),
                            .eps = 1e-5f,
                            .out = x.place()};
    NormPlan second = first;
    second.x = second.out = x.place() + 3 * n_dims * int64_t{sizeof(float)};
    second.function = NormFunction::kLayer;
    second.n_groups = 1;
    second.weight = weights.place() + n_dims * int64_t{sizeof(float)};
    second.bias = bias.place();
    const NormPlan both[] = {first, second};
    verbs.Normalise(both);
    return side.Get(x, n_rows * 4 * n_dims);
  };
  ExpectLikeCpu(body, 5e-6);
}

// Norms of few families: weights by group or none, no bias, and none at all.
TEST_F(RowVerbsTest, NormsOfEveryForm) {
  const auto body = [](const Side& side, auto& verbs) {
    const int n_rows = 3, n_dims = 40;
    const int64_t third = 2 * n_dims * int64_t{sizeof(float)};
    const MachineBuffer x = side.Put(Drawn(n_rows * 6 * n_dims, 1));
    const MachineBuffer weights = side.Put(Drawn(2 * n_dims, 2));
    NormPlan by_group = {.x = x.place(),
                         .n_rows = n_rows,
                         .n_groups = 2,
                         .n_dims = n_dims,
                         .stride = 6 * n_dims,
                         .weight = weights.place(),
                         .has_group_weights = true,
                         .eps = 1e-5f,
                         .out = x.place()};
    NormPlan bare = by_group, none = by_group;
    bare.function = NormFunction::kLayer;
    bare.has_group_weights = none.has_group_weights = false;
    bare.weight = none.weight = {};
    bare.x = bare.out = x.place() + third;
    none.function = NormFunction::kNone;
    none.x = none.out = x.place() + 2 * third;
    const NormPlan all[] = {by_group, bare, none};
    verbs.Normalise(all);
    return side.Get(x, n_rows * 6 * n_dims);
  };
  ExpectLikeCpu(body, 5e-6);
}

TEST_F(RowVerbsTest, Gates) {
  for (const GateKind kind :
       {GateKind::kSwiglu, GateKind::kGegluTanh, GateKind::kGelu, GateKind::kGeluTanh,
        GateKind::kRelu2, GateKind::kXielu, GateKind::kClampedSwiglu}) {
    for (const int64_t ffn_dim : {17, 64}) {
      for (const DType type : {DType::kF32, DType::kBf16}) {
        const auto body = [&](const Side& side, auto& verbs) {
          GatePlan plan = {.kind = kind, .n_rows = 5, .ffn_dim = ffn_dim, .out_type = type};
          plan.xielu = {.positive = 0.8f, .negative = 0.7f, .beta = 0.5f, .eps = -1e-3f};
          const MachineBuffer x = side.Put(Drawn(5 * plan.n_in(), 1, 4));
          const MachineBuffer y = side.Put(std::vector<float>(5 * ffn_dim), type);
          plan.x = x.place();
          plan.out = y.place();
          verbs.Gate(plan);
          return side.Get(y, 5 * ffn_dim, type);
        };
        ExpectLikeCpu(body, type == DType::kBf16 ? kBf16Bound : 3e-6);
      }
    }
  }
}

TEST_F(RowVerbsTest, Caps) {
  for (const int64_t n : {1, 300, 2049}) {
    const auto body = [&](const Side& side, auto& verbs) {
      const MachineBuffer x = side.Put(Drawn(n, 1, 40));
      verbs.Cap({.x = x.place(), .n_numbers = n, .cap = 30});
      return side.Get(x, n);
    };
    ExpectLikeCpu(body, 1e-6);
  }
}

TEST_F(RowVerbsTest, EmbeddingsOfMatricesAndTables) {
  const int64_t n_words = 12, n_dims = 64;
  const std::vector<float> words = Drawn(n_words * n_dims, 1), places = Drawn(8 * n_dims, 2);
  const auto table_of = [](const std::vector<float>& rows) {
    return HostTable{
        .n_rows = std::ssize(rows) / n_dims,
        .n_dims = n_dims,
        .read = [&rows](int64_t row, float* to) { std::copy_n(&rows[row * n_dims], n_dims, to); }};
  };
  const std::vector<TokenPlace> tokens = {
      {.token_id = 103, .position = 0, .meets_whole_keys = true},
      {.token_id = 99, .position = 1, .meets_whole_keys = true},
      {.token_id = 111, .position = 7, .meets_whole_keys = false},
      {.token_id = 112, .position = 2, .meets_whole_keys = false}};
  for (const auto type : {WeightType::kBf16, WeightType::kF32, WeightType::kQ4_0}) {
    for (const bool is_tied : {true, false}) {
      for (const bool is_plain : {true, false}) {
        const auto body = [&](const Side& side, auto& verbs) {
          const Weight tied = side.Matrix(words, n_words, type);
          const TableId table = *side.residents.AddTable(table_of(words));
          const TableId positions = *side.residents.AddTable(table_of(places));
          const MachineBuffer out = side.Put(Drawn(4 * n_dims, 3));
          EmbedPlan plan = {.tokens = tokens, .n_dims = n_dims, .out = out.place()};
          plan.held_words = {100, 112};
          if (is_tied) {
            plan.tied_words = tied.id();
          } else {
            plan.words = table;
          }
          if (!is_plain) {
            plan.positions = positions;
            plan.scale = 1.7f;
          }
          verbs.Embed(plan);
          const std::vector<float> rows = side.Get(out, 4 * n_dims);
          side.residents.Remove(table);
          side.residents.Remove(positions);
          return rows;
        };
        ExpectLikeCpu(body, 0);
      }
    }
  }
}

TEST_F(RowVerbsTest, RowsTakeEachOthersPlaces) {
  const std::vector<int64_t> from = {0, 1, 4, 4, 9, 12, 12, 19, 19, 19, 30};
  for (const int64_t row_bytes : {64, 36, 10}) {
    const auto body = [&](const Side& side, auto& verbs) {
      std::vector<uint8_t> bytes(31 * row_bytes);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
      const MachineBuffer rows = side.Put(bytes);
      verbs.TakeRows({.rows = rows.place(), .row_bytes = row_bytes, .from = from});
      std::vector<uint8_t> taken(bytes.size());
      side.memory.Download(rows.place(), std::as_writable_bytes(std::span(taken)));
      return std::vector<float>(taken.begin(), taken.end());
    };
    ExpectLikeCpu(body, 0);
  }
}

TEST_F(RowVerbsTest, AChannelIsTakenOutOfRows) {
  const auto body = [](const Side& side, auto& verbs) {
    const MachineBuffer rows = side.Put(Drawn(200 * 6, 1));
    std::vector<float> all =
        verbs.TakeChannel({.rows = rows.place(), .n_rows = 200, .n_dims = 6, .channel = 5});
    const std::vector<float> left = side.Get(rows, 200 * 6);
    all.insert(all.end(), left.begin(), left.end());
    return all;
  };
  ExpectLikeCpu(body, 0);
}

TEST_F(RowVerbsTest, SeveralChannelsAreTakenOutOfRows) {
  const auto body = [](const Side& side, auto& verbs) {
    const MachineBuffer rows = side.Put(Drawn(70 * 48, 1));
    std::vector<float> all = verbs.TakeChannel({.rows = rows.place(),
                                                .n_rows = 70,
                                                .n_dims = 48,
                                                .channel = 7,
                                                .n_channels = 4,
                                                .channels_apart = 10});
    const std::vector<float> left = side.Get(rows, 70 * 48);
    all.insert(all.end(), left.begin(), left.end());
    return all;
  };
  ExpectLikeCpu(body, 0);
}

}  // namespace
}  // namespace kvlathe

// Verbs on a GPU against those of the CPU, on equal plans.
#include "cuda/rows/row_verbs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cpu/cpu_backend.h"
#include "io/gguf/ggml_types_quantize.h"

namespace kvlathe {
namespace {

// Memory and residents of one of the two machines.
struct Side {
  Device& memory;
  Residents& residents;

  template <typename T>
  MachineBuffer Put(const std::vector<T>& numbers) const {
    return *MachineBuffer::CopyOf(&memory, std::as_bytes(std::span(numbers)), "a test");
  }
  // n numbers of a type, as floats.
  MachineBuffer Put(const std::vector<float>& numbers, DType type) const {
    std::vector<std::byte> bytes(numbers.size() * SizeOf(type));
    ConvertFromFloat(type, numbers.data(), std::ssize(numbers), bytes.data());
    return Put(bytes);
  }
  std::vector<float> Get(const MachineBuffer& buffer, int64_t n, DType type = DType::kF32) const {
    std::vector<std::byte> bytes(n * SizeOf(type));
    memory.Download(buffer.place(), bytes);
    std::vector<float> numbers(n);
    ConvertToFloat(type, bytes.data(), n, numbers.data());
    return numbers;
  }
  Weight Matrix(const std::vector<float>& numbers, int64_t n_out, WeightType type) const {
    const int64_t n_in = std::ssize(numbers) / n_out;
    Weight weight = *Weight::Create(&residents, n_out, n_in, type);
    if (!HasBlocks(type)) {
      weight.WriteRows(0, n_out, DType::kF32, numbers.data(), n_in);
      return weight;
    }
    const int64_t row_bytes = n_in / 32 * 18;
    std::vector<std::byte> blocks(n_out * row_bytes);
    QuantizeBlocks(GgmlType::kQ4_0, numbers.data(), n_out * n_in, blocks.data());
    weight.WriteBlocks(0, n_out, blocks.data(), row_bytes);
    return weight;
  }
};

std::vector<float> Drawn(int64_t n, uint64_t seed, float size = 1) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = size * static_cast<float>(random.Normal());
  return x;
}

class RowVerbsTest : public testing::Test {
 protected:
  RowVerbsTest() { cpu_.set_exact_rows(true); }
  ~RowVerbsTest() override { EXPECT_TRUE(stream_->Finish().ok()); }

  // Calls body(side, verbs) on both machines and compares what it returns, to a relative or
  // absolute `bound`; 0: bit by bit.
  template <typename F>
  void ExpectLikeCpu(const F& body, double bound) {
    const std::vector<float> want = body(Side{cpu_memory_, cpu_residents_}, cpu_);
    const std::vector<float> got = body(Side{*device_, residents_}, verbs_);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], bound * std::max(1.0f, std::abs(want[i]))) << i;
    }
  }

  ThreadPool pool_{1};
  CpuDevice cpu_memory_, host_memory_;
  CpuResidents cpu_residents_{&cpu_memory_}, host_residents_{&host_memory_};
  CpuBackend cpu_{&pool_, Isa::kScalar, &cpu_memory_, &cpu_residents_};
  std::unique_ptr<CudaStream> stream_ = *CudaStream::Create();
  std::unique_ptr<CudaDevice> device_ = *CudaDevice::Create(stream_.get(), int64_t{48} << 20);
  CudaResidents residents_{device_.get(), &host_residents_};
  RowVerbs verbs_{stream_.get(), device_.get(), &residents_};
};

// Half a unit in the last place of BF16 decides differently where sums differ.
constexpr double kBf16Bound = 1.0 / 128;
constexpr double kF32Bound = 2e-5;

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
    second.n_groups = 1;
    second.weight = weights.place() + n_dims * int64_t{sizeof(float)};
    second.bias = bias.place();
    const NormPlan both[] = {first, second};
    verbs.Normalise(both);
    return side.Get(x, n_rows * 4 * n_dims);
  };
  ExpectLikeCpu(body, 5e-6);
}

TEST_F(RowVerbsTest, Gates) {
  for (const GateKind kind :
       {GateKind::kSwiglu, GateKind::kGegluTanh, GateKind::kGelu, GateKind::kGeluTanh}) {
    for (const int64_t ffn_dim : {17, 64}) {
      for (const DType type : {DType::kF32, DType::kBf16}) {
        const auto body = [&](const Side& side, auto& verbs) {
          GatePlan plan = {.kind = kind, .n_rows = 5, .ffn_dim = ffn_dim, .out_type = type};
          const MachineBuffer x = side.Put(Drawn(5 * plan.n_in(), 1, 3));
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

// What differs between caches in how queries and keys come there.
struct TurnCase {
  DType type = DType::kF32;
  int rope_dim = 16;
  bool has_offset = false, has_mean = false, has_maps = false, joins_two = false;
  bool adds_values = false;
  int first_unturned = RotatePlan::kAllTurn;
  int first_less_offset = 0;
  int zeroed_channel = -1;
};

// Buffers and plan of two KV heads with three query heads each.
class Turn {
 public:
  Turn(const TurnCase& c, const Side& side, int n_tokens)
      : case_(c),
        side_(side),
        n_tokens_(n_tokens),
        n_joined_(c.joins_two ? 2 : 1),
        width_(kDim * n_joined_),
        qk_(side.Put(Drawn(n_tokens * kStride, 1))),
        turned_q_(Rows(kHeads * kGroup * width_)),
        turned_k_(Rows(kHeads * kDim)),
        mapped_q_(Rows(kHeads * kGroup * kRank)),
        mapped_k_(Rows(kHeads * kRank)),
        v_(Rows(kRank)),
        cos_(side.Put(Drawn(kPositions * kDim / 2, 2))),
        sin_(side.Put(Drawn(kPositions * kDim / 2, 3))),
        offset_(side.Put(Drawn(kHeads * kDim, 4))),
        mean_(side.Put(Drawn(kHeads * kDim, 5))) {
    const WeightType weights = DenseWeights(c.type);
    for (int h = 0; h < kHeads; ++h) {
      query_maps_.push_back(side.Matrix(Drawn(kRank * kDim, 6 + h, 0.3f), kRank, weights));
      key_maps_.push_back(side.Matrix(Drawn(kRank * width_, 8 + h, 0.3f), kRank, weights));
    }
    for (int t = 0; t < n_tokens; ++t) {
      // Two sequences, whose first tokens meet whole keys.
      const int position = t < n_tokens / 2 ? t : t - n_tokens / 2;
      tokens_.push_back({.token_id = 0, .position = position, .meets_whole_keys = position < 2});
    }
  }

  RotatePlan Plan() {
    for (int h = 0; h < kHeads; ++h) heads_.push_back(HeadOf(h));
    return {.tokens = tokens_,
            .heads = heads_,
            .gqa_group = kGroup,
            .head_dim = kDim,
            .stride = kStride,
            .cos = cos_.place(),
            .sin = sin_.place(),
            .key_cos = sin_.place(),
            .key_sin = cos_.place(),
            .rope_dim = case_.rope_dim,
            .first_unturned = case_.first_unturned,
            .first_less_mean = 3,
            .first_less_offset = case_.first_less_offset,
            .zeroed_channel = case_.zeroed_channel,
            .keys_per_map = n_joined_,
            .out_type = case_.type};
  }
  std::vector<float> TurnedRows() const {
    std::vector<float> all = Got(turned_q_, kHeads * kGroup * width_);
    const std::vector<float> keys = Got(turned_k_, kHeads * kDim);
    all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }
  std::vector<float> MappedRows() const {
    std::vector<float> all = Got(mapped_q_, kHeads * kGroup * kRank);
    const std::vector<float> keys = Got(mapped_k_, kHeads * kRank);
    all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }

 private:
  static constexpr int kHeads = 2, kGroup = 3, kDim = 16, kRank = 12, kPositions = 160;
  static constexpr int kStride = kHeads * (kGroup + 1) * kDim;

  MachineBuffer Rows(int64_t width) const {
    return side_.Put(Drawn(n_tokens_ * width, 9), case_.type);
  }
  std::vector<float> Got(const MachineBuffer& rows, int64_t width) const {
    return side_.Get(rows, n_tokens_ * width, case_.type);
  }
  HeadTurn HeadOf(int h) const {
    const int64_t element = SizeOf(case_.type), part = h % n_joined_;
    const int64_t f32_row = kDim * int64_t{sizeof(float)};
    HeadTurn head = {.q = qk_.place() + h * kGroup * f32_row,
                     .k = qk_.place() + (kHeads * kGroup + h) * f32_row,
                     .turned_q = turned_q_.place() + h * kGroup * width_ * element,
                     .turned_q_stride = kHeads * kGroup * width_,
                     .turned_q_width = width_,
                     .turned_q_place = static_cast<int>(part * kDim),
                     .turned_k = {turned_k_.place() + h * kDim * element, kHeads * kDim}};
    if (case_.has_offset) head.key_offset = offset_.place() + h * f32_row;
    if (case_.has_mean) head.turning_mean = mean_.place() + h * f32_row;
    if (!case_.has_maps) return head;
    head.query_map = query_maps_[h].id();
    head.mapped_q = mapped_q_.place() + h * kGroup * kRank * element;
    head.mapped_q_stride = kHeads * kGroup * kRank;
    if (part > 0) return head;
    head.key_map = key_maps_[h].id();
    head.joined_k = head.turned_k;
    head.mapped_k = mapped_k_.place() + h * n_tokens_ * kRank * element;
    if (case_.adds_values) head.added_v = {v_.place(), kRank};
    return head;
  }

  TurnCase case_;
  Side side_;
  int n_tokens_, n_joined_, width_;
  MachineBuffer qk_, turned_q_, turned_k_, mapped_q_, mapped_k_, v_, cos_, sin_, offset_, mean_;
  std::vector<Weight> query_maps_, key_maps_;
  std::vector<TokenPlace> tokens_;
  std::vector<HeadTurn> heads_;
};

TEST_F(RowVerbsTest, QueriesAndKeysTurnAndAreMapped) {
  const TurnCase cases[] = {
      {},
      {.type = DType::kBf16, .zeroed_channel = 15},
      {.rope_dim = 8, .has_offset = true, .first_less_offset = 4},
      {.has_offset = true, .first_unturned = 3, .zeroed_channel = 0},
      {.has_offset = true, .has_mean = true, .has_maps = true},
      {.type = DType::kBf16, .has_offset = true, .has_maps = true, .adds_values = true},
      {.rope_dim = 12, .has_mean = true, .has_maps = true, .joins_two = true, .adds_values = true},
      {.type = DType::kBf16, .has_offset = true, .has_maps = true, .joins_two = true},
  };
  for (const TurnCase& c : cases) {
    for (const int n_tokens : {1, 12, 80, 300}) {
      const auto rows_of = [&](bool mapped) {
        return [&, mapped](const Side& side, auto& verbs) {
          Turn turn(c, side, n_tokens);
          verbs.RotateAndMap(turn.Plan());
          return mapped ? turn.MappedRows() : turn.TurnedRows();
        };
      };
      ExpectLikeCpu(rows_of(false), 0);
      ExpectLikeCpu(rows_of(true), c.type == DType::kBf16 ? 2 * kBf16Bound : kF32Bound);
    }
  }
}

}  // namespace
}  // namespace kvlathe

// The forward with zack(online=on) against the literal decoder whose rows are projected literally,
// on the right singular vectors of stacked rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "analysis/bases/fdc_reference.h"
#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/byte_kinds.h"
#include "kv/quantizer/quantizer_methods.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceModel;
using testing::RootMeanSquare;

constexpr int kTokens = 390;

struct Case {
  const char* name;
  const char* spec;
  testing::RandomModelShape shape;
  int n_prompt, n_sink;
  bool is_normalised = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const testing::RandomModelShape kGrouped = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 48};
const Case kCases[] = {
    {"Prompt330", "zack(online=on)", kGrouped, 330, 4},
    {"NormalisedWithoutSinks", "zack(online=on,normalise=on,sink=0)", kGrouped, 128, 0, true},
    {"PromptFillsNoBlock", "zack(online=on)", kGrouped, 40, 4},
    {"QueriesThatDoNotTurn",
     "zack(online=on,sink=2)",
     {.model_type = "gpt2", .hidden = 64, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32},
     150,
     2},
};

// Of layers and KV heads, in turn.
std::vector<HeadRanks> RanksOf(const ReferenceModel& m) {
  std::vector<HeadRanks> ranks = {{16, 32}, {m.head_dim, 16}, {32, 16}, {16, m.head_dim}};
  ranks.resize(m.n_layers * m.n_kv_heads, {16, 16});
  return ranks;
}

// W_O of a query head transposed: a row for each number of the stream.
Matrix OutputRows(const ReferenceModel& m, int layer, int head) {
  const bool is_gpt2 = m.model_type == "gpt2";
  const std::string name = is_gpt2 ? fmt::format("transformer.h.{}.attn.c_proj.weight", layer)
                                   : fmt::format("model.layers.{}.self_attn.o_proj.weight", layer);
  const std::vector<double>& w = m.tensors.at(name);
  const int width = m.n_heads * m.head_dim;
  Matrix rows;
  for (int out = 0; out < m.hidden; ++out) {
    std::vector<double>& row = rows.emplace_back();
    for (int i = head * m.head_dim; i < (head + 1) * m.head_dim; ++i) {
      row.push_back(is_gpt2 ? w[i * m.hidden + out] : w[out * width + i]);
    }
  }
  return rows;
}

Matrix Stack(Matrix a, Matrix b, bool is_normalised) {
  for (Matrix* m : {&a, &b}) {
    double squares = 0;
    for (const auto& row : *m) {
      for (const double x : row) squares += x * x;
    }
    for (auto& row : *m) {
      for (double& x : row) x /= is_normalised ? std::sqrt(squares) : 1;
    }
  }
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Projects the rows of full blocks, from where the prompt ends, on the first right singular vectors
// of the queries so far stacked on the keys of the first run, and of its values on W_O^T.
class LiteralZack {
 public:
  LiteralZack(const Case& c, const ReferenceModel& m) : c_(c), m_(m), layers_(m.n_layers) {}

  void operator()(int layer, testing::ReferenceRows* rows) {
    Layer& l = layers_[layer];
    l.queries.resize(m_.n_kv_heads);
    const int group = m_.n_heads / m_.n_kv_heads;
    for (int h = 0; h < m_.n_heads && l.n_seen >= c_.n_sink; ++h) {
      l.queries[h / group].push_back(rows->queries[h]);
    }
    if (++l.n_seen < c_.n_prompt) return;
    const int n = std::max(0, l.n_seen - c_.n_sink) / 64 * 64;
    if (n == l.n_sealed) return;
    for (int g = 0; g < m_.n_kv_heads; ++g) {
      const HeadRanks ranks = RanksOf(m_)[layer * m_.n_kv_heads + g];
      if (l.n_sealed == 0) FindBases(layer, g, n, *rows);
      Project(l.keys[g], ranks.rank_k, l.n_sealed, n, &rows->keys[g]);
      Project(l.values[g], ranks.rank_v, l.n_sealed, n, &rows->values[g]);
    }
    l.n_sealed = n;
  }

 private:
  struct Layer {
    int n_seen = 0, n_sealed = 0;
    std::vector<Matrix> queries, keys, values;  // rows, and right singular vectors, of KV heads
  };

  void FindBases(int layer, int g, int n, const testing::ReferenceRows& rows) {
    Layer& l = layers_[layer];
    const auto run = [&](const Matrix& m) {
      return Matrix(m.begin() + c_.n_sink, m.begin() + c_.n_sink + n);
    };
    l.keys.push_back(
        reference::DecomposeStacked(Stack(l.queries[g], run(rows.keys[g]), c_.is_normalised))
            .right);
    Matrix outputs;
    const int group = m_.n_heads / m_.n_kv_heads;
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const Matrix more = OutputRows(m_, layer, h);
      outputs.insert(outputs.end(), more.begin(), more.end());
    }
    l.values.push_back(
        reference::DecomposeStacked(Stack(run(rows.values[g]), outputs, c_.is_normalised)).right);
  }

  void Project(const Matrix& directions, int rank, int begin, int end, Matrix* rows) const {
    for (int t = c_.n_sink + begin; t < c_.n_sink + end; ++t) {
      std::vector<double>& row = (*rows)[t];
      std::vector<double> projected(row.size(), 0.0);
      for (int r = 0; r < rank; ++r) {
        double dot = 0;
        for (size_t i = 0; i < row.size(); ++i) dot += row[i] * directions[r][i];
        for (size_t i = 0; i < row.size(); ++i) projected[i] += dot * directions[r][i];
      }
      row = projected;
    }
  }

  Case c_;
  const ReferenceModel& m_;
  std::vector<Layer> layers_;
};

int64_t Round64(int64_t n) { return (n + 63) / 64 * 64; }

// Of one sequence, `element` bytes a number.
int64_t LiteralBytes(const Case& c, const ReferenceModel& m, int n_tokens, int64_t element) {
  const int64_t n_blocks = (std::max(0, n_tokens - c.n_sink) + 63) / 64, d = m.head_dim;
  int64_t n_sealed = 0, n_runs = 0, n_bytes = 0;
  if (n_tokens >= c.n_prompt) {
    const int64_t of_prompt = std::max(0, c.n_prompt - c.n_sink) / 64;
    n_sealed = std::max(0, n_tokens - c.n_sink) / 64;
    n_runs = (of_prompt > 0 ? 1 : 0) + n_sealed - of_prompt;
  }
  for (const HeadRanks& r : RanksOf(m)) {
    n_bytes += Round64(2 * c.n_sink * d * element) + Round64(8 * n_blocks);
    n_bytes += (n_blocks - n_sealed) * 64 * 2 * d * element;
    n_bytes += n_sealed * 64 * (r.rank_k + r.rank_v) * element;
    n_bytes += n_runs == 0 ? 4 * d * d : d * (r.rank_k + r.rank_v) * element + Round64(32 * n_runs);
  }
  return n_bytes;
}

class OnlineZackTest : public ::testing::TestWithParam<Case> {
 protected:
  OnlineZackTest() : directory_(testing::FreshDirectory("online_zack")) {
    reference_ = testing::WriteRandomModel(GetParam().shape, directory_, 31);
    std::mt19937_64 random(7);
    for (int i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int>(random() % reference_.vocab));
  }
  ~OnlineZackTest() override { std::filesystem::remove_all(directory_); }

  // An empty `ranks`: the uncompressed model.
  std::unique_ptr<Model> Load(Isa isa, DType type, const std::vector<HeadRanks>& ranks) {
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights =
        ModelWeights::Load(*LoadModelConfig(directory_), type, MakeFileSource(*std::move(reader)),
                           MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    ModelBasis basis{reference_.n_layers, reference_.n_kv_heads, reference_.head_dim};
    for (const HeadRanks& r : ranks) {
      basis.heads.push_back({.rank_k = r.rank_k, .rank_v = r.rank_v});
    }
    basis.online =
        OnlineInputs{.output_grams = OutputGrams(), .is_normalised = GetParam().is_normalised};
    const auto spec = Spec::Parse(GetParam().spec);
    EXPECT_TRUE(spec.ok() && CheckSupported(*spec).ok());
    auto model =
        CreateModel(*std::move(weights), ranks.empty() ? PlanParts{} : PartsOf(*spec, &basis));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Of the group's heads.
  std::vector<std::vector<double>> OutputGrams() const {
    const int d = reference_.head_dim, group = reference_.n_heads / reference_.n_kv_heads;
    std::vector<std::vector<double>> grams;
    for (int h = 0; h < reference_.n_layers * reference_.n_heads; ++h) {
      if (h % group == 0) grams.emplace_back(d * d);
      for (const auto& row :
           OutputRows(reference_, h / reference_.n_heads, h % reference_.n_heads)) {
        for (int i = 0; i < d * d; ++i) grams.back()[i] += row[i / d] * row[i % d];
      }
    }
    return grams;
  }

  // Logits after every token, in chunks of at most `chunk`.
  Matrix Logits(Model* model, int chunk) {
    SequenceCache cache(&model->layout(), &pool_);
    cache.set_n_prompt(GetParam().n_prompt);
    Matrix logits;
    while (cache.n_tokens() < kTokens) {
      const int n = static_cast<int>(
          std::min<int64_t>({chunk, kTokens - cache.n_tokens(), cache.max_step()}));
      const SequenceStep step = Next(&cache, n);
      const Status status = model->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits.emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      CheckBytes(*model, cache, n);
      EXPECT_EQ(cache.bytes().total(), pool_.usage().used_bytes);
    }
    return logits;
  }

  SequenceStep Next(SequenceCache* cache, int n) {
    const int begin = cache->n_tokens();
    EXPECT_TRUE(cache->Extend(n).ok());
    return {cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kAll};
  }

  void CheckBytes(const Model& model, const SequenceCache& cache, int n_step) {
    const int64_t n_bytes = cache.bytes().total();
    const SequenceLength length = {cache.n_tokens(), n_step, GetParam().n_prompt};
    EXPECT_EQ(n_bytes, SequenceParts(model.layout(), length).total());
    EXPECT_LE(n_bytes, PeakSequenceBytes(model.layout(), length.n_tokens, 512, length.n_prompt));
    if (!model.layout().GathersQueries()) return;
    const BlockShape& shape = model.layout().shapes[0];
    const HeadStorage storage = model.layout().storage(0, 0);
    if (std::get<RotatedRanks>(storage).k == RanksOf(reference_)[0].rank_k) {
      EXPECT_EQ(n_bytes,
                LiteralBytes(GetParam(), reference_, cache.n_tokens(), SizeOf(shape.row_type)));
    }
    int64_t by_kind = 0;
    for (const ByteKinds& kinds : ByteKindsByLayer(model.layout(), length)) {
      by_kind += kinds.total();
    }
    EXPECT_EQ(n_bytes, by_kind);
  }

  std::string directory_;
  ReferenceModel reference_;
  std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};

TEST_P(OnlineZackTest, MatchesLiteralProjections) {
  const Case& c = GetParam();
  const std::vector<int> ids(ids_.begin(), ids_.end());
  LiteralZack literal(c, reference_);
  const Matrix expected = testing::ReferenceLogits(
      reference_, ids, {}, c.n_sink,
      [&](int layer, testing::ReferenceRows* rows) { literal(layer, rows); });
  const double loss = RootMeanSquare(expected, testing::ReferenceLogits(reference_, ids));
  ASSERT_GT(loss, 1e-3);
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(IsaName(isa));
    std::unique_ptr<Model> f32 = Load(isa, DType::kF32, RanksOf(reference_));
    const Matrix whole = Logits(f32.get(), 512);
    EXPECT_LT(RootMeanSquare(whole, expected), 0.002 * loss + 1e-4);
    EXPECT_LT(RootMeanSquare(Logits(f32.get(), 37), whole), 1e-4);
    std::unique_ptr<Model> bf16 = Load(isa, DType::kBf16, RanksOf(reference_));
    EXPECT_LT(RootMeanSquare(Logits(bf16.get(), 64), expected), 0.3 * loss + 2e-2);
  }
}

TEST_P(OnlineZackTest, AtFullRankIsTheUncompressedModel) {
  const int d = reference_.head_dim;
  const std::vector<HeadRanks> full(reference_.n_layers * reference_.n_kv_heads, {d, d});
  const Isa isa = AvailableIsas().back();
  EXPECT_LT(RootMeanSquare(Logits(Load(isa, DType::kF32, full).get(), 100),
                           Logits(Load(isa, DType::kF32, {}).get(), 100)),
            1e-4);
}

// Two sequences of one prompt, in chunks of their own, together and alone.
TEST_P(OnlineZackTest, HasTheBitsOfASequenceAloneHoweverItIsCut) {
  std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, RanksOf(reference_));
  model->set_deterministic(true);
  const Matrix alone = Logits(model.get(), 512);
  SequenceCache first(&model->layout(), &pool_), second(&model->layout(), &pool_);
  Matrix of_first, of_second;
  for (SequenceCache* cache : {&first, &second}) cache->set_n_prompt(GetParam().n_prompt);
  while (second.n_tokens() < kTokens) {
    const auto room = [](const SequenceCache& cache, int64_t chunk) {
      return static_cast<int>(
          std::min({chunk, kTokens - int64_t{cache.n_tokens()}, cache.max_step()}));
    };
    const int n_first = room(first, 50), n_second = room(second, 21);
    std::vector<SequenceStep> steps = {Next(&first, n_first), Next(&second, n_second)};
    if (n_first == 0) steps.erase(steps.begin());
    ASSERT_TRUE(model->Forward(steps).ok());
    for (int t = 0; t < n_first + n_second; ++t) {
      (t < n_first ? of_first : of_second)
          .emplace_back(model->logits(t).begin(), model->logits(t).end());
    }
  }
  EXPECT_EQ(of_first, alone);
  EXPECT_EQ(of_second, alone);
}

TEST(OnlineZack, IsRefusedWithASlidingWindow) {
  const std::string directory = testing::FreshDirectory("online_zack_window");
  testing::WriteRandomModel({.model_type = "mistral", .window = 64}, directory, 3);
  ThreadPool threads(1);
  auto reader = SafetensorsReader::OpenModel(directory);
  auto weights = ModelWeights::Load(*LoadModelConfig(directory), DType::kBf16,
                                    MakeFileSource(*std::move(reader)),
                                    MakeMachine(&threads, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  ModelBasis basis{2, 2, 16, std::vector<HeadBasis>(4, {.rank_k = 16, .rank_v = 16})};
  basis.online = OnlineInputs{};
  const auto model =
      CreateModel(*std::move(weights), PartsOf(*Spec::Parse("zack(online=on)"), &basis));
  EXPECT_EQ(model.status().code(), StatusCode::kUnimplemented);
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Cases, OnlineZackTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvlathe

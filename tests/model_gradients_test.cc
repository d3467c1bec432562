// Gradients of stored rows against finite differences of a literal decoder in double, for every
// family.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <vector>

#include "calibration/gradients/decoder_gradients.h"
#include "calibration/joint_moments.h"
#include "loaded_model.h"
#include "model_shapes.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_family.h"
#include "references/golden_models.h"

namespace kvlathe {
namespace {

using testing::LoadedModel;
using testing::NamedShape;
using testing::RandomModelShape;
using testing::ReferenceModel;
using testing::ReferenceRows;

constexpr int kTokens = 24;
constexpr int kNewest = 4;  // narrower than the narrowest window of the shapes

enum Kind { kKeys, kKeysBeforeRope, kValues, kKinds };

// The gradients of a window, as they were shown.
struct KeptGradients {
  DrawnTokens drawn;
  std::vector<std::vector<float>> rows[kKinds];  // [n_layers] of [n_tokens, n_kv_heads, head_dim]
  std::vector<std::vector<float>> through_all[kKinds];
};

KeptGradients GradientsOf(LoadedModel* loaded, const std::vector<int>& ids, Isa isa,
                          int64_t kept_bytes = kKeptLayerBytes, int newest = kNewest) {
  const ModelConfig& c = loaded->weights->config();
  KeptGradients kept;
  for (auto& rows : kept.rows) rows.resize(c.n_layers);
  for (auto& rows : kept.through_all) rows.resize(c.n_layers);
  DecoderGradients gradients(loaded->weights.get(), loaded->pool.get(), isa, newest, kept_bytes);
  const std::vector<int32_t> tokens(ids.begin(), ids.end());
  auto drawn = gradients.Run(tokens, 3, [&](const RowGradients& shown) {
    const int64_t n = shown.n_tokens * c.n_kv_heads * c.head_dim;
    kept.rows[kKeys][shown.layer_idx].assign(shown.k_post, shown.k_post + n);
    kept.rows[kKeysBeforeRope][shown.layer_idx].assign(shown.k_pre, shown.k_pre + n);
    kept.rows[kValues][shown.layer_idx].assign(shown.v, shown.v + n);
    const RowGradients::ThroughAll& all = shown.through_all;
    kept.through_all[kKeys][shown.layer_idx].assign(all.k_post, all.k_post + n);
    kept.through_all[kKeysBeforeRope][shown.layer_idx].assign(all.k_pre, all.k_pre + n);
    kept.through_all[kValues][shown.layer_idx].assign(all.v, all.v + n);
  });
  EXPECT_TRUE(drawn.ok()) << drawn.status();
  kept.drawn = *std::move(drawn);
  return kept;
}

// A change of one position's row of all KV heads of a layer.
struct RowChange {
  Kind kind;
  int layer_idx, position;
  testing::Matrix by;  // [n_kv_heads][head_dim]
};

// What is added to the stored row of a head; keys are stored behind RoPE.
std::vector<double> StoredChange(const ReferenceModel& m, const RowChange& change, int kv_head_idx,
                                 double factor) {
  std::vector<double> by = change.by[kv_head_idx];
  for (double& x : by) x *= factor;
  if (change.kind == kKeysBeforeRope && m.dmc.has_value()) {
    by[m.dmc->is_last ? m.head_dim - 1 : 0] = 0;  // no part of a key
  }
  if (change.kind != kKeysBeforeRope || m.rotary_dim == 0) return by;
  return RotateRow(RopeOf(m, change.layer_idx), m.rotary_dim, by, change.position);
}

// The sum of log p of what was drawn, if the row is `factor` times the change off for all queries
// that are kNewest positions or more behind it.
double LogLikelihood(const ReferenceModel& m, const std::vector<int>& ids, const DrawnTokens& drawn,
                     const RowChange& change, double factor) {
  const auto lose = [&](int layer_idx, ReferenceRows* rows) {
    const auto n_rows = std::ssize(rows->keys[0]);
    if (layer_idx != change.layer_idx || n_rows != change.position + kNewest) return;
    for (int g = 0; g < m.n_kv_heads; ++g) {
      std::vector<double>& row =
          (change.kind == kValues ? rows->values : rows->keys)[g][change.position];
      const std::vector<double> by = StoredChange(m, change, g, factor);
      for (int i = 0; i < m.head_dim; ++i) row[i] += by[i];
    }
  };
  const testing::Matrix logits = ReferenceLogits(m, ids, {}, 0, lose);
  double sum = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    const double most = *std::max_element(logits[t].begin(), logits[t].end());
    double total = 0;
    for (const double x : logits[t]) total += std::exp(x - most);
    sum += logits[t][drawn.ids[t]] - most - std::log(total);
  }
  return sum;
}

std::vector<NamedShape> Shapes() {
  std::vector<NamedShape> shapes = testing::ModelShapes();
  RandomModelShape gemma;
  gemma.model_type = "gemma3_text";
  gemma.n_layers = 3;
  gemma.head_dim = 32;
  gemma.window = 9;
  gemma.whole_every = 2;
  gemma.rope.theta = 1e6;
  gemma.query_scalar = 20;
  gemma.tied = true;
  shapes.push_back({"gemma3", gemma});
  RandomModelShape dmc;  // whose positions do not merge here
  dmc.attention_bias = true;
  dmc.dmc.emplace();
  shapes.push_back({"llama_dmc", dmc});
  RandomModelShape dms;  // of which nothing leaves here
  dms.model_type = "qwen3";
  dms.dms.emplace();
  dms.dms->query_channel.emplace();
  shapes.push_back({"qwen3_dms", dms});
  return shapes;
}

class ModelGradientsTest : public ::testing::TestWithParam<NamedShape> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory(std::string("gradients_") + GetParam().name);
    reference_ = testing::WriteRandomModel(GetParam().shape, directory_, 17);
    std::mt19937_64 random(5);
    for (int i = 0; i < kTokens; ++i) {
      ids_.push_back(static_cast<int>(random() % reference_.vocab));
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  ReferenceModel reference_;
  std::vector<int> ids_;
};

TEST_P(ModelGradientsTest, LayersThatAreNotKeptAreComputedAgainWithTheSameBits) {
  LoadedModel loaded = testing::LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const KeptGradients kept = GradientsOf(&loaded, ids_, AvailableIsas().back());
  const KeptGradients again = GradientsOf(&loaded, ids_, AvailableIsas().back(), /*kept_bytes=*/0);
  EXPECT_EQ(kept.drawn.ids, again.drawn.ids);
  for (int kind = 0; kind < kKinds; ++kind) EXPECT_EQ(kept.rows[kind], again.rows[kind]);
}

TEST_P(ModelGradientsTest, ThroughAllQueriesAreThoseOfAPassWhereNoneIsTooNear) {
  LoadedModel loaded = testing::LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const KeptGradients kept = GradientsOf(&loaded, ids_, AvailableIsas().back());
  const KeptGradients whole =
      GradientsOf(&loaded, ids_, AvailableIsas().back(), kKeptLayerBytes, /*newest=*/0);
  EXPECT_EQ(kept.drawn.ids, whole.drawn.ids);
  for (int kind = 0; kind < kKinds; ++kind) {
    for (size_t l = 0; l < whole.rows[kind].size(); ++l) {
      double square = 0, error = 0, far_square = 0;
      for (size_t i = 0; i < whole.rows[kind][l].size(); ++i) {
        const double x = whole.rows[kind][l][i], y = kept.through_all[kind][l][i];
        square += x * x;
        error += (x - y) * (x - y);
        far_square += double{kept.rows[kind][l][i]} * kept.rows[kind][l][i];
      }
      // Sums of F32 in another order; measured: at most 1.02e-10.
      EXPECT_LE(error, 2e-10 * square) << "layer " << l << " kind " << kind;
      EXPECT_LT(far_square, 0.9 * square) << "layer " << l << " kind " << kind;
    }
  }
}

TEST_P(ModelGradientsTest, AreFiniteDifferencesOfTheLiteralDecoder) {
  const ReferenceModel& m = reference_;
  LoadedModel loaded = testing::LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const KeptGradients kept = GradientsOf(&loaded, ids_, AvailableIsas().back());
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  for (int l = 0; l < m.n_layers; ++l) {
    for (int kind = 0; kind < kKinds; ++kind) {
      for (const int position : {0, 7, kTokens - kNewest - 1, kTokens - kNewest}) {
        SCOPED_TRACE(fmt::format("layer {} kind {} position {}", l, kind, position));
        RowChange change = {static_cast<Kind>(kind), l, position, {}};
        const float* const g = &kept.rows[kind][l][int64_t{position} * m.n_kv_heads * m.head_dim];
        double along = 0, square = 0;
        for (int h = 0; h < m.n_kv_heads; ++h) {
          change.by.emplace_back(m.head_dim);
          for (int i = 0; i < m.head_dim; ++i) {
            const double x = change.by[h][i] = normal(random);
            along += x * g[h * m.head_dim + i];
            square += double{g[h * m.head_dim + i]} * g[h * m.head_dim + i];
          }
        }
        if (position == kTokens - kNewest) {  // nobody is far enough behind it
          EXPECT_EQ(square, 0);
          continue;
        }
        constexpr double kStep = 1e-4;
        const double difference = (LogLikelihood(m, ids_, kept.drawn, change, kStep) -
                                   LogLikelihood(m, ids_, kept.drawn, change, -kStep)) /
                                  (2 * kStep);
        EXPECT_NEAR(along, difference, 1e-3 * std::sqrt(square) + 1e-6);
        EXPECT_GT(square, position < 8 ? 1e-8 : 0);  // few queries are behind the last
      }
    }
  }
  const RowChange none = {kValues, 0, 0,
                          testing::Matrix(m.n_kv_heads, std::vector<double>(m.head_dim))};
  EXPECT_NEAR(kept.drawn.log_likelihood, LogLikelihood(m, ids_, kept.drawn, none, 0), 1e-2);
}

// What WeightFisherSums adds up.
TEST_P(ModelGradientsTest, ProjectionsHaveTheGradientsOfTheirWeights) {
  const ReferenceModel& m = reference_;
  LoadedModel loaded = testing::LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const int64_t width = int64_t{m.n_kv_heads} * m.head_dim;
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  for (const char* name : {"k_proj", "v_proj"}) {
    const std::string tensor = fmt::format("model.layers.1.self_attn.{}.weight", name);
    if (m.tensors.count(tensor) == 0) continue;  // families whose projections are one tensor
    std::vector<double> by(width * m.hidden);
    for (double& x : by) x = normal(random);
    double along = 0, square = 0;
    DecoderGradients gradients(loaded.weights.get(), loaded.pool.get(), AvailableIsas().back(),
                               kNewest);
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    const auto drawn = gradients.Run(tokens, 3, [&](const RowGradients& shown) {
      if (shown.layer_idx != 1) return;
      const RowGradients::Projections& p = shown.projections;
      const bool is_key = name[0] == 'k';
      for (int64_t i = 0; i < width; ++i) {
        const int64_t stored = StoredRow(m, static_cast<int>(i));
        for (int64_t j = 0; j < m.hidden; ++j) {
          double g = 0;
          for (int64_t t = 0; t < shown.n_tokens; ++t) {
            const float made = is_key ? p.k[t * p.k_stride + i] : p.v[t * width + i];
            g += double{made} * p.inputs[t * m.hidden + j];
          }
          along += g * by[(is_key ? stored : i) * m.hidden + j];
          square += g * g;
        }
      }
    });
    ASSERT_TRUE(drawn.ok()) << drawn.status();
    const RowChange none = {kValues, 0, 0,
                            testing::Matrix(m.n_kv_heads, std::vector<double>(m.head_dim))};
    const auto likelihood_at = [&](double step) {
      ReferenceModel moved = m;
      std::vector<double>& weights = moved.tensors[tensor];
      for (size_t i = 0; i < weights.size(); ++i) weights[i] += step * by[i];
      return LogLikelihood(moved, ids_, *drawn, none, 0);
    };
    constexpr double kStep = 1e-5;
    const double difference = (likelihood_at(kStep) - likelihood_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(along, difference, 2e-3 * std::sqrt(square) + 1e-5) << name;
    EXPECT_GT(square, 1e-8) << name;
  }
}

// How many of the drawn tokens are others.
int CountDifferent(const DrawnTokens& a, const DrawnTokens& b) {
  EXPECT_EQ(a.ids.size(), b.ids.size());
  int n = 0;
  for (size_t i = 0; i < std::min(a.ids.size(), b.ids.size()); ++i) n += a.ids[i] != b.ids[i];
  return n;
}

// Where products are BF16 dots, rows are rounded to 8 bits before each of them. That leaves a few
// thousandths of a gradient's square, and may draw another token where two were about as likely,
// whose gradients are others. A router may choose another expert as well.
TEST_P(ModelGradientsTest, AreTheSameOnEveryInstructionSetAndFromWeightsInBf16) {
  LoadedModel f32 = testing::LoadModel(directory_, DType::kF32, AvailableIsas().back());
  const KeptGradients expected = GradientsOf(&f32, ids_, AvailableIsas().back());
  for (const DType type : {DType::kF32, DType::kBf16}) {
    for (const Isa isa : AvailableIsas()) {
      LoadedModel loaded = testing::LoadModel(directory_, type, isa);
      const KeptGradients kept = GradientsOf(&loaded, ids_, isa);
      const bool rounds = type == DType::kBf16 && HasBf16Dots(isa);
      const double rounded_share = GetParam().shape.features.n_experts > 0 ? 0.2 : 4e-3;
      const int n_different = CountDifferent(kept.drawn, expected.drawn);
      EXPECT_LE(n_different, rounds ? kTokens / 6 : 0);
      for (int kind = 0; kind < kKinds && n_different == 0; ++kind) {
        for (size_t l = 0; l < kept.rows[kind].size(); ++l) {
          double square = 0, error = 0;
          for (size_t i = 0; i < kept.rows[kind][l].size(); ++i) {
            const double x = expected.rows[kind][l][i];
            square += x * x;
            error += (kept.rows[kind][l][i] - x) * (kept.rows[kind][l][i] - x);
          }
          EXPECT_LT(error, (rounds ? rounded_share : 1e-7) * square)
              << IsaName(isa) << " layer " << l << " kind " << kind;
        }
      }
    }
  }
}

// log softmax of one row.
std::vector<double> LogProbabilities(const std::vector<double>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double x : logits) total += std::exp(x - most);
  std::vector<double> log_p = logits;
  for (double& x : log_p) x -= most + std::log(total);
  return log_p;
}

// The mean over windows and tokens of the KL of rows with independent errors of `deviation` in
// every channel of one layer, read by queries that are kNewest positions or more behind.
double KlOfErrors(const ReferenceModel& m, const std::vector<std::vector<int>>& windows, Kind kind,
                  int layer_idx, double deviation) {
  std::mt19937_64 random(31);
  std::normal_distribution<double> normal(0, deviation);
  const auto lose = [&](int l, ReferenceRows* rows) {
    const int position = static_cast<int>(std::ssize(rows->keys[0])) - kNewest;
    if (l != layer_idx || position < kCalibrationSinks) return;
    RowChange change = {kind, l, position, {}};
    for (int g = 0; g < m.n_kv_heads; ++g) {
      change.by.emplace_back(m.head_dim);
      for (double& x : change.by[g]) x = normal(random);
      std::vector<double>& row = (kind == kValues ? rows->values : rows->keys)[g][position];
      const std::vector<double> by = StoredChange(m, change, g, 1);
      for (int i = 0; i < m.head_dim; ++i) row[i] += by[i];
    }
  };
  double sum = 0, n = 0;
  for (const std::vector<int>& ids : windows) {
    const testing::Matrix exact = ReferenceLogits(m, ids);
    const testing::Matrix lossy = ReferenceLogits(m, ids, {}, 0, lose);
    for (size_t t = 0; t < ids.size(); ++t, ++n) {
      const std::vector<double> p = LogProbabilities(exact[t]), q = LogProbabilities(lossy[t]);
      for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
    }
  }
  return sum / n;
}

TEST(FisherOfRowsTest, ItsTraceWithTheCovarianceOfAnErrorIsTheKl) {
  const std::string directory = testing::FreshDirectory("fisher_of_rows");
  const ReferenceModel m = testing::WriteRandomModel({}, directory, 17);
  LoadedModel loaded = testing::LoadModel(directory, DType::kF32, AvailableIsas().back());
  std::mt19937_64 random(6);
  std::vector<std::vector<int>> windows(100, std::vector<int>(kTokens));
  CalibrationStatistics s = MakeStatistics({m.n_layers, m.n_heads, m.n_kv_heads, m.head_dim});
  FisherSums sums(s.shape, 0, loaded.pool.get());
  DecoderGradients gradients(loaded.weights.get(), loaded.pool.get(), AvailableIsas().back(),
                             kNewest);
  const TurningMeans none(s.shape, 0, 0);
  for (size_t w = 0; w < windows.size(); ++w) {
    for (int& id : windows[w]) id = static_cast<int>(random() % m.vocab);
    const std::vector<int32_t> ids(windows[w].begin(), windows[w].end());
    const auto add = [&](const RowGradients& shown) { sums.Add(shown, {}, none, false); };
    ASSERT_TRUE(gradients.Run(ids, w, add).ok());
    sums.CountTokens(kTokens, false);
  }
  ASSERT_TRUE(sums.Finish(none, &s).ok());
  const int width = m.n_kv_heads * m.head_dim;
  const std::vector<float>* fishers[kKinds] = {&s.joint.k.fisher, &s.joint.k_pre.fisher,
                                               &s.joint.v.fisher};
  for (int l = 0; l < m.n_layers; ++l) {
    for (int kind = 0; kind < kKinds; ++kind) {
      double trace = 0;
      for (int i = 0; i < width; ++i) trace += (*fishers[kind])[(l * width + i) * width + i];
      const double deviation = std::sqrt(1e-3 / trace);
      // What was drawn is a sample, and so are the errors.
      EXPECT_NEAR(KlOfErrors(m, windows, static_cast<Kind>(kind), l, deviation), 1e-3, 1.5e-4)
          << "layer " << l << " kind " << kind;
    }
  }
  std::filesystem::remove_all(directory);
}

class GoldenGradientsTest : public ::testing::TestWithParam<testing::GoldenModel> {};

// The way forwards is that of transformers, for every family: tokens that are drawn have the
// likelihood that its logits give them.
TEST_P(GoldenGradientsTest, DrawFromTheLogitsOfTransformers) {
  for (const testing::GoldenText& text : testing::ReadGoldenTexts(GetParam())) {
    const int n_tokens = static_cast<int>(text.ids.size());
    LoadedModel loaded = testing::LoadModel(GetParam().directory, DType::kF32,
                                            AvailableIsas().back(), nullptr, 0, n_tokens);
    const KeptGradients kept = GradientsOf(&loaded, text.ids, AvailableIsas().back());
    ASSERT_EQ(std::ssize(kept.drawn.ids), n_tokens);
    double expected = 0;
    for (int t = 0; t < n_tokens; ++t) {
      expected += LogProbabilities(text.logits[t])[kept.drawn.ids[t]];
    }
    EXPECT_NEAR(kept.drawn.log_likelihood, expected, 1e-3) << n_tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenGradientsTest, ::testing::ValuesIn(testing::GoldenModels()),
                         [](const auto& model) { return model.param.name; });

INSTANTIATE_TEST_SUITE_P(Shapes, ModelGradientsTest, ::testing::ValuesIn(Shapes()),
                         [](const auto& shape) { return shape.param.name; });

}  // namespace
}  // namespace kvlathe

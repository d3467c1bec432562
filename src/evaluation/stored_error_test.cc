#include "evaluation/stored_error.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>

#include "analysis/statistics/error_spectrum.h"
#include "evaluation/quality.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kLayers = 2, kHeads = 2, kDim = 32, kSink = 4;
constexpr int kRun = 512;  // positions of a run of the prompt
constexpr int64_t kBudgetBytes = 64 << 20;

ModelConfig LongConfig() {
  ModelConfig c = SmallConfig(kDim);
  c.max_seq_len = 1200;
  return c;
}

// Rows as an uncompressed model computes them.
struct Rows : QkvObserver {
  std::vector<std::vector<float>> k{kLayers}, v{kLayers};
  void Observe(const QkvView& view) override {
    const int64_t n = int64_t{view.n_tokens} * kHeads * kDim;
    k[view.layer_idx].insert(k[view.layer_idx].end(), view.k_post, view.k_post + n);
    v[view.layer_idx].insert(v[view.layer_idx].end(), view.v, view.v + n);
  }
};

class StoredErrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Load(LongConfig());
    for (int t = 0; t < 1100; ++t) tokens_.push_back((t * 37 + t / 11) % 128);
  }
  void Load(const ModelConfig& config) {
    auto weights = ModelWeights::Load(config, DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
  }
  std::unique_ptr<Model> Make(const char* kv, const ModelBasis* basis = nullptr) {
    const Spec spec = *Spec::Parse(kv);
    PlanParts parts = PartsOf(spec, basis);
    parts.n_sink = kSink;
    auto model = CreateModel(weights_, std::move(parts));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  StatusOr<std::vector<LayerErrors>> Measure(const char* kv, int n_tokens) {
    return MeasureStoredErrors(Make(kv).get(), std::span(tokens_).first(n_tokens), kBudgetBytes);
  }
  std::vector<LayerErrors> Errors(const char* kv, int n_tokens) {
    auto errors = Measure(kv, n_tokens);
    EXPECT_TRUE(errors.ok()) << errors.status();
    return errors.ok() ? *std::move(errors) : std::vector<LayerErrors>();
  }

  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::vector<int32_t> tokens_;
};

float ToF16(double x) { return static_cast<float>(static_cast<_Float16>(x)); }

// The errors of KIVI's codes in a group: asymmetric, scale and minimum in F16.
std::vector<double> GroupErrors(const std::vector<double>& group, int bits) {
  double least = group[0], most = group[0];
  for (const double x : group) {
    least = std::min(least, x);
    most = std::max(most, x);
  }
  const double n_steps = (1 << bits) - 1;
  const double scale = ToF16((most - least) / n_steps), minimum = ToF16(least);
  std::vector<double> errors;
  for (const double x : group) {
    const double code = std::clamp(std::nearbyint((x - minimum) / scale), 0.0, n_steps);
    errors.push_back(x - (code * scale + minimum));
  }
  return errors;
}

// Errors of KIVI, [entries, channels] of one head's first run.
Eigen::MatrixXd KiviErrors(const std::vector<float>& rows, int head, bool is_key, int bits) {
  constexpr int kGroup = 32;
  Eigen::MatrixXd x(kRun, kDim), errors(kRun, kDim);
  for (int t = 0; t < kRun; ++t) {
    for (int c = 0; c < kDim; ++c) x(t, c) = rows[((kSink + t) * kHeads + head) * kDim + c];
  }
  for (int first = 0; first < kRun * kDim; first += kGroup) {
    std::vector<double> group;
    const auto at = [&](int i) -> std::pair<int, int> {
      const int place = first + i;  // along the tokens of a channel, or the channels of a token
      return is_key ? std::pair(place % kRun, place / kRun) : std::pair(place / kDim, place % kDim);
    };
    for (int i = 0; i < kGroup; ++i) group.push_back(x(at(i).first, at(i).second));
    const std::vector<double> lost = GroupErrors(group, bits);
    for (int i = 0; i < kGroup; ++i) errors(at(i).first, at(i).second) = lost[i];
  }
  return errors;
}

TEST_F(StoredErrorTest, AreThoseOfALiteralQuantiser) {
  // One run: what is sealed changes nothing that comes before its end.
  const int n_tokens = kSink + kRun;
  Rows rows;
  const std::unique_ptr<Model> plain = Make("none");
  HostPool pool(kBudgetBytes);
  SequenceCache cache(&plain->layout(), &pool);
  ASSERT_TRUE(Prefill(plain.get(), &cache, std::span(tokens_).first(n_tokens), &rows).ok());
  const std::vector<LayerErrors> measured = Errors("kivi(bits=2,group=32)", n_tokens);
  ASSERT_EQ(measured.size(), static_cast<size_t>(kLayers));
  for (int l = 0; l < kLayers; ++l) {
    for (const bool is_key : {true, false}) {
      const std::vector<float>& all = is_key ? rows.k[l] : rows.v[l];
      const StoredError& side = is_key ? measured[l].k : measured[l].v;
      double squares = 0, lost = 0;
      std::vector<double> first(kDim);
      for (int h = 0; h < kHeads; ++h) {
        const Eigen::MatrixXd errors = KiviErrors(all, h, is_key, 2);
        const Eigen::VectorXd singular = Eigen::JacobiSVD<Eigen::MatrixXd>(errors).singularValues();
        for (int r = 0; r < kDim; ++r) first[r] += singular.head(r + 1).squaredNorm();
        lost += errors.squaredNorm();
      }
      for (size_t i = kSink * kHeads * kDim; i < all.size(); ++i)
        squares += double{all[i]} * all[i];
      // A value that lies halfway between two codes may go to either.
      EXPECT_NEAR(side.relative, lost / squares, 1e-4 * side.relative) << l << is_key;
      ASSERT_EQ(side.shares.size(), static_cast<size_t>(kDim));
      for (int r = 0; r < kDim; ++r) {
        EXPECT_NEAR(side.shares[r], first[r] / lost, 1e-4) << l << is_key << r;
      }
      EXPECT_NEAR(side.shares[kDim - 1], 1, 1e-9);
      const std::vector<double> white = WhiteNoise(kDim).Shares(kRun);
      for (int r = 0; r < kDim; ++r) EXPECT_NEAR(side.white_shares[r], white[r], 1e-9);
    }
  }
}

// What the spectrum promises is what the repair removes: power iteration finds the best factors up
// to a few percent.
TEST_F(StoredErrorTest, ARepairRemovesItsShare) {
  const int n_tokens = kSink + kRun;
  const std::vector<LayerErrors> plain = Errors("kivi(bits=2,group=32)", n_tokens);
  const std::vector<LayerErrors> repaired =
      Errors("kivi(bits=2,group=32)+lowrank(prefill=4,loops=8)", n_tokens);
  for (int l = 0; l < kLayers; ++l) {
    EXPECT_NEAR(repaired[l].k.relative / plain[l].k.relative, 1 - plain[l].k.shares[3], 0.02) << l;
    EXPECT_NEAR(repaired[l].v.relative / plain[l].v.relative, 1 - plain[l].v.shares[3], 0.02) << l;
    // The next four singular values come first now.
    const std::vector<double>& shares = plain[l].k.shares;
    EXPECT_NEAR(repaired[l].k.shares[3], (shares[7] - shares[3]) / (1 - shares[3]), 0.02) << l;
  }
}

// The mean of the biases that leaves keys before they are stored is no loss.
TEST_F(StoredErrorTest, BiasesOfKeysAreNoLoss) {
  ModelConfig config = LongConfig();
  config.model_type = "qwen2";
  config.biases.qkv = true;
  Load(config);
  const auto size_of = [](std::span<const float> offset) {
    double sum = 0;
    for (const float x : offset) sum += std::abs(x);
    return sum;
  };
  EXPECT_GT(size_of(Make("int8")->key_offset(1, 1)), 0);
  EXPECT_EQ(size_of(Make("none")->key_offset(1, 1)), 0);
  for (const LayerErrors& layer : Errors("int8", 1100)) EXPECT_LT(layer.k.relative, 1e-4);
}

TEST_F(StoredErrorTest, MoreBitsLoseLess) {
  double before = 1;
  for (const char* kv : {"kivi(bits=2)", "kivi(bits=3)", "kvquant(bits=4,outliers=0.05)", "int8"}) {
    const std::vector<LayerErrors> errors = Errors(kv, 1100);  // two runs, and some open rows
    for (const LayerErrors& layer : errors) {
      EXPECT_GT(layer.v.relative, 0) << kv;
      EXPECT_LT(layer.v.relative, 0.2) << kv;
    }
    EXPECT_LT(errors[1].v.relative, before) << kv;
    before = errors[1].v.relative;
  }
}

TEST_F(StoredErrorTest, RefusesWhatItCannotCompare) {
  EXPECT_EQ(Measure("none", 1100).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Measure("svd-online", 1100).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Measure("kivi", 40).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Measure("kivi", 0).status().code(), StatusCode::kInvalidArgument);
  const ModelBasis basis = DrawRandomBasis(kLayers, kHeads, kDim, 0.5, 1);
  EXPECT_EQ(MeasureStoredErrors(Make("kivi", &basis).get(), tokens_, kBudgetBytes).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe

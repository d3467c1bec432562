// Keys with biases of hundreds, as Qwen2.5 has them: what a cache loses does not depend on a
// constant that all keys of a head share. Bases take the mean away, some quantizers scale channels
// on their own, and from the keys of the others the part of the bias leaves that RoPE leaves alone.
// Statistics whose squares are summed about zero have no digits left of what such keys vary by.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "calibrated_model.h"
#include "evaluation/short_loss.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kPrompt = 384, kDecoded = 48, kHeadDim = 32;
constexpr float kSmallBias = 0.5f, kLargeBias = 350;

// Biases of keys, in three pairs of channels.
struct Biases {
  float size = 0;
  // The slowest, where biases of real models are large: a query sees much the same of them in every
  // key.
  int first_pair = kHeadDim / 2 - 3;
  int context = 4096;
};
// In 65,536 positions these turn about, so that their mean is small; in a few hundred they hardly
// turn.
constexpr Biases kTurning = {.size = kLargeBias, .first_pair = 7, .context = 65536};
// These go round in tens of positions, whatever the text.
constexpr Biases kFast = {.size = 30, .first_pair = 2};

// Random weights of sizes with which attention chooses.
class BiasedSource : public TensorSource {
 public:
  explicit BiasedSource(const Biases& biases) : biases_(biases), random_(MakeRandomSource(3)) {}

  bool Has(const std::string& name) const override { return random_->Has(name); }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    KVL_ASSIGN_OR_RETURN(const StoredTensor drawn, random_->Get(name, shape));
    const int64_t n = drawn.n_elements();
    auto values = std::make_unique<float[]>(n);
    drawn.Read(0, n, values.get());
    random_->Done(drawn);
    const bool is_key_bias = name.ends_with("k_proj.bias");
    for (int64_t i = 0; i < n; ++i) {
      const int64_t pair = i % (kHeadDim / 2);
      if (is_key_bias && pair >= biases_.first_pair && pair < biases_.first_pair + 3) {
        values[i] = biases_.size * (1 + 5 * values[i]) * (i % 3 == 0 ? -1.0f : 1.0f);
      } else {
        values[i] *= GainOf(name);
      }
    }
    const auto* data = reinterpret_cast<const std::byte*>(values.get());
    kept_.push_back(std::move(values));
    return StoredTensor{DType::kF32, {}, shape, data, n * int64_t{sizeof(float)}};
  }
  void Done(const StoredTensor&) override {}
  bool is_mapped() const override { return false; }

 private:
  static float GainOf(const std::string& name) {
    if (name.ends_with("q_proj.weight")) return 8;
    if (name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight")) return 4;
    if (name.ends_with("o_proj.weight")) return 4;
    return name.starts_with("lm_head") ? 10 : 1;
  }

  Biases biases_;
  std::unique_ptr<TensorSource> random_;
  std::vector<std::unique_ptr<float[]>> kept_;
};

ModelConfig BiasedConfig(int context) {
  ModelConfig c = SmallConfig(kHeadDim);
  c.model_type = "qwen2";
  c.biases.qkv = true;
  c.max_seq_len = context;
  c.attention.kinds[0].rope.theta = 1e7;
  return c;
}

using Distribution = std::vector<double>;  // log p

Distribution LogSoftmax(std::span<const float> logits) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  Distribution log_p;
  for (const float x : logits) log_p.push_back(x - std::log(sum));
  return log_p;
}

class LargeBiases : public ::testing::Test {
 protected:
  // The model is loaded and calibrated once.
  struct Loaded {
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<CalibratedModel> model;
    std::vector<Distribution> uncompressed;
  };

  static void SetUpTestSuite() {
    small_ = new Loaded(Load({.size = kSmallBias}));
    large_ = new Loaded(Load({.size = kLargeBias}));
  }
  static void TearDownTestSuite() {
    delete small_;
    delete large_;
    small_ = large_ = nullptr;
  }

  static Loaded Load(const Biases& biases) {
    Loaded loaded{.threads = std::make_unique<ThreadPool>(2)};
    auto weights = ModelWeights::Load(BiasedConfig(biases.context), DType::kF32,
                                      std::make_unique<BiasedSource>(biases),
                                      MakeMachine(loaded.threads.get(), SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    loaded.model = std::make_unique<CalibratedModel>(fmt::format("biases of {}", biases.size),
                                                     *std::move(weights), loaded.threads.get());
    loaded.uncompressed = Run(&loaded, "none");
    return loaded;
  }

  // What follows each of the decoded tokens of a text that calibration has not seen.
  static std::vector<Distribution> Run(Loaded* loaded, const std::string& text) {
    const auto plan = loaded->model->planner().MakePlan(*Spec::Parse(text));
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    auto model = Model::Create(loaded->model->weights(), *plan);
    EXPECT_TRUE(model.ok()) << model.status();
    HostPool pool(int64_t{64} << 20);
    SequenceCache cache(&(*model)->layout(), &pool);
    cache.set_n_prompt(kPrompt, kDecoded);
    Random random(17);
    std::vector<Distribution> found;
    for (int t = 0; t < kPrompt + kDecoded;) {
      const auto n =
          t < kPrompt ? static_cast<int>(std::min<int64_t>(kPrompt - t, cache.max_step())) : 1;
      std::vector<int32_t> ids(n);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, ids, SequenceStep::Logits::kLast};
      const Status status = (*model)->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << text << ": " << status;
      t += n;
      if (t > kPrompt) found.push_back(LogSoftmax((*model)->logits(0)));
    }
    return found;
  }

  // Mean KL of the cache, in nats per token.
  static double Kl(Loaded* loaded, const std::string& spec) {
    const std::vector<Distribution> found = Run(loaded, spec);
    double sum = 0;
    for (size_t t = 0; t < found.size(); ++t) {
      for (size_t i = 0; i < found[t].size(); ++i) {
        const double log_p = loaded->uncompressed[t][i];
        sum += std::exp(log_p) * (log_p - found[t][i]);
      }
    }
    return sum / static_cast<double>(found.size());
  }

  static Loaded *small_, *large_;
};

LargeBiases::Loaded* LargeBiases::small_ = nullptr;
LargeBiases::Loaded* LargeBiases::large_ = nullptr;

// Everything that subtracts the mean, turns rows into a basis of their own, or scales each channel
// of K for itself.
constexpr const char* kSpecs[] = {"lathe(ratio=4)",
                                  "lathe(ratio=8)",
                                  "lathe(ratio=8,keys=after)",
                                  "lathe(ratio=8,keys=block)",
                                  "lathe(rate=0.25,keys=centred)",
                                  "lathe(ratio=4,keys=before)",
                                  "lathe(ratio=8,keys=before)",
                                  "lathe(ratio=4,heads=own)",
                                  "lathe(ratio=4,scales=static)",
                                  "lathe(rate=0.25)",
                                  "palu(rate=0.25)",
                                  "palu(rate=0.25,group=2)",
                                  "zack(rate=0.25)",
                                  "zack(rate=0.25,online=on)",
                                  "fdc(rate=0.25)",
                                  "svd-online(rate=0.25)",
                                  "kivi(bits=4)",
                                  "kivi(bits=2)",
                                  "kivi(bits=2)+lowrank+sparse",
                                  "kcvt(bits=4)",
                                  "token(bits=4)",
                                  "token(bits=2,group=16)+lowrank+sparse",
                                  "token(bits=4)+h2o(keep=0.5)",
                                  "pool(n=2)+token(bits=4)",
                                  "int8",
                                  "q8_0",
                                  "q4_0",
                                  "mxfp4",
                                  "kvquant(bits=4)",
                                  "kvquant(bits=3)",
                                  "lathe(rate=0.25)+kvquant(bits=4)",
                                  "palu(rate=0.25)+kvquant(bits=4)",
                                  "fdc(rate=0.25)+kvquant(bits=4)"};

TEST_F(LargeBiases, CostNoMoreThanSmallOnes) {
  for (const char* spec : kSpecs) {
    const double with_small = Kl(small_, spec), with_large = Kl(large_, spec);
    EXPECT_LT(with_large, 2 * with_small + 1e-6) << spec;
  }
}

// Maps that do not take the mean away have scales that it takes up.
TEST_F(LargeBiases, BreakWhatKeepsTheMean) {
  const char* const spec = "lathe(ratio=4,centre=off)";
  EXPECT_GT(Kl(large_, spec), 5 * Kl(small_, spec));
}

// Channels of a token that share a scale have one for those with and without a bias. What turns
// with the positions cannot be taken off all keys alike, and a short text tells.
TEST_F(LargeBiases, ThatTurnAreSeenInAShortText) {
  const Loaded turning = Load(kTurning);
  Random random(5);
  std::vector<int32_t> ids(400);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
  constexpr int64_t kBudget = int64_t{64} << 20;
  const auto model_of = [&](const char* spec) {
    return Model::Create(turning.model->weights(),
                         *turning.model->planner().MakePlan(*Spec::Parse(spec)))
        .value();
  };
  const auto none = model_of("none");
  const auto baseline = ShortTextBaseline::Read(none.get(), ids, kBudget);
  ASSERT_TRUE(baseline.ok()) << baseline.status();
  const auto loss_of = [&](const char* spec) {
    const auto model = model_of(spec);
    const auto loss = baseline->Compare(model.get(), kBudget, turning.threads.get());
    EXPECT_TRUE(loss.ok()) << spec << ": " << loss.status();
    return loss.value_or(ShortLoss());
  };
  for (const char* spec : {"q4_0", "token(bits=4)", "token(bits=4,newest=32)", "mxfp4",
                           "q4_0+h2o(keep=0.5)", "window(size=8)"}) {
    const ShortLoss loss = loss_of(spec);
    EXPECT_GT(loss.kl, 0.2) << spec;
    EXPECT_LT(loss.top1_agreement, 0.9) << spec;
  }
  for (const char* spec : {"kivi(bits=4)", "kivi(bits=4,newest=32)", "kcvt(bits=8)", "none"}) {
    const ShortLoss loss = loss_of(spec);
    EXPECT_LT(loss.kl, 0.05) << spec;
    EXPECT_GT(loss.n_tokens, 24) << spec;
  }
}

// What turns with the positions is no constant of keys after RoPE, and takes up their codes where
// it does not leave before they turn.
TEST_F(LargeBiases, ThatTurnFastLeaveBeforeKeysTurn) {
  Loaded fast = Load(kFast);
  for (const char* heads : {"joint", "own"}) {
    const auto kl = [&](const char* keys) {
      return Kl(&fast, fmt::format("lathe(ratio=8,heads={},keys={})", heads, keys));
    };
    const double centred = kl("centred"), after = kl("after");
    fmt::print("heads={}: centred {:.3g}, after {:.3g}\n", heads, centred, after);
    EXPECT_LT(centred, 0.8 * after) << heads;
  }
}

TEST_F(LargeBiases, MoreBitsLoseLess) {
  for (const char* options : {"", ",keys=before", ",heads=own", ",scales=static"}) {
    const auto kl = [&](int ratio) {
      return Kl(large_, fmt::format("lathe(ratio={}{})", ratio, options));
    };
    EXPECT_LT(kl(4), kl(8)) << options;
  }
}

// What lathe is predicted to lose is about what it loses.
TEST_F(LargeBiases, ArePredicted) {
  for (const char* spec : {"lathe(ratio=4)", "lathe(ratio=8)", "lathe(ratio=4,keys=before)"}) {
    for (Loaded* loaded : {small_, large_}) {
      const auto predicted = loaded->model->planner().PredictKl(*Spec::Parse(spec));
      ASSERT_TRUE(predicted.ok()) << predicted.status();
      const double measured = Kl(loaded, spec);
      fmt::print("{} predicted {:.3g} measured {:.3g}\n", spec, *predicted, measured);
      EXPECT_GT(*predicted, measured / 5) << spec;
      EXPECT_LT(*predicted, measured * 5) << spec;
    }
  }
}

}  // namespace
}  // namespace kvlathe

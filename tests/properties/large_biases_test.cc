// Keys with biases of hundreds, as Qwen2.5 has them: what a cache loses does not depend on a
// constant that all keys of a head share, wherever the method says that it takes the mean away or
// scales channels on their own. Statistics whose squares are summed about zero have no digits left
// of what such keys vary by.
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
#include "kv/blocks/host_pool_fixture.h"
#include "model/model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kPrompt = 384, kDecoded = 48, kHeadDim = 32;
constexpr float kSmallBias = 0.5f, kLargeBias = 350;

// Random weights of sizes with which attention chooses; keys have biases of about `bias` in the
// three pairs of channels that RoPE turns most slowly, where biases of real models are large: a
// query sees much the same of them in every key.
class BiasedSource : public TensorSource {
 public:
  explicit BiasedSource(float bias) : bias_(bias), random_(MakeRandomSource(3)) {}

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
      if (is_key_bias && pair >= kHeadDim / 2 - 3) {
        values[i] = bias_ * (1 + 5 * values[i]) * (i % 3 == 0 ? -1.0f : 1.0f);
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

  float bias_;
  std::unique_ptr<TensorSource> random_;
  std::vector<std::unique_ptr<float[]>> kept_;
};

ModelConfig BiasedConfig() {
  ModelConfig c = SmallConfig(kHeadDim);
  c.model_type = "qwen2";
  c.biases.qkv = true;
  c.max_seq_len = 4096;
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
    small_ = new Loaded(Load(kSmallBias));
    large_ = new Loaded(Load(kLargeBias));
  }
  static void TearDownTestSuite() {
    delete small_;
    delete large_;
    small_ = large_ = nullptr;
  }

  static Loaded Load(float bias) {
    Loaded loaded{.threads = std::make_unique<ThreadPool>(2)};
    auto weights =
        ModelWeights::Load(BiasedConfig(), DType::kF32, std::make_unique<BiasedSource>(bias),
                           MakeMachine(loaded.threads.get(), SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    loaded.model = std::make_unique<CalibratedModel>(fmt::format("biases of {}", bias),
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

// Groups along the channels of a token have one scale for channels with and without a bias.
TEST_F(LargeBiases, BreakWhatScalesChannelsTogether) {
  for (const char* spec :
       {"token(bits=4)", "q8_0", "q4_0", "mxfp4", "int8", "lathe(ratio=4,centre=off)"}) {
    EXPECT_GT(Kl(large_, spec), 5 * Kl(small_, spec)) << spec;
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

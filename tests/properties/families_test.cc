// Caches of every axis on a small model of every family: what a method makes of a feature of the
// model shows in the distance from the uncompressed model, and bytes are what the plan says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "calibrated_model.h"
#include "io/safetensors/safetensors.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/tensor_source.h"
#include "references/golden_models.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::GoldenModel;

constexpr int kPrompt = 160, kDecoded = 48;
using Logits = std::vector<std::vector<float>>;

class FamiliesTest : public ::testing::TestWithParam<GoldenModel> {
 protected:
  void SetUp() override {
    auto config = LoadModelConfig(GetParam().directory);
    ASSERT_TRUE(config.ok()) << config.status();
    if (config->positions == PositionKind::kRope) config->max_seq_len = 32768;
    auto reader = SafetensorsReader::OpenModel(GetParam().directory);
    ASSERT_TRUE(reader.ok()) << reader.status();
    auto weights = ModelWeights::Load(*config, DType::kF32, MakeFileSource(*std::move(reader)),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    model_ = std::make_unique<CalibratedModel>(GetParam().name, *std::move(weights), &threads_);
    Random random(5);
    const int n = std::min(kPrompt + kDecoded, config->max_seq_len);
    for (int i = 0; i < n; ++i) {
      ids_.push_back(static_cast<int32_t>(random.Below(config->vocab_size)));
    }
  }

  // Logits behind the tokens that follow the prompt.
  Logits Run(Model* model) {
    HostPool pool(int64_t{64} << 20);
    SequenceCache cache(&model->layout(), &pool);
    const int n_prompt = static_cast<int>(ids_.size()) - kDecoded;
    cache.set_n_prompt(n_prompt, kDecoded);
    Logits logits;
    while (cache.n_tokens() < std::ssize(ids_)) {
      const int begin = cache.n_tokens();
      const int n = begin < n_prompt
                        ? static_cast<int>(std::min<int64_t>(n_prompt - begin, cache.max_step()))
                        : 1;
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, std::span(ids_).subspan(begin, n),
                              SequenceStep::Logits::kLast};
      const Status status = model->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(cache.bytes().total(),
                SequenceParts(model->layout(), {cache.n_tokens(), n, n_prompt}).total());
      if (::testing::Test::HasFailure()) return {};
      if (begin >= n_prompt) {
        logits.emplace_back(model->logits(0).begin(), model->logits(0).end());
      }
    }
    return logits;
  }

  ThreadPool threads_{1};
  std::unique_ptr<CalibratedModel> model_;
  std::vector<int32_t> ids_;
};

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  std::vector<double> log_p;
  for (const float x : logits) log_p.push_back(x - most - std::log(sum));
  return log_p;
}

double MeanKl(const Logits& from, const Logits& to) {
  double sum = 0;
  for (size_t t = 0; t < from.size(); ++t) {
    const std::vector<double> p = LogSoftmax(from[t]), q = LogSoftmax(to[t]);
    for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum / static_cast<double>(from.size());
}

TEST_P(FamiliesTest, CachesOfEveryAxisAreNearTheModel) {
  auto plain = CreateModel(model_->weights(), {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  const Logits expected = Run(plain->get());
  for (const char* const text :
       {"zack(rate=0.5,ranks=uniform)", "palu(rate=0.5,ranks=uniform,round=16)", "h2o(keep=0.5)",
        "kivi(bits=4)", "turboquant(bits=4)", "int8", "h2o(keep=0.5)+kivi(bits=4)",
        "lathe(ratio=4)", "lathe(ratio=4,keys=before)", "lathe(ratio=4)+snapkv(keep=0.5)",
        "fdc(rate=0.25,ranks=uniform)+kivi(bits=4)"}) {
    SCOPED_TRACE(text);
    const StatusOr<Spec> spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const StatusOr<CachePlan> plan = model_->planner().MakePlan(*spec);
    if (!plan.ok()) {
      fmt::print("KL {} {}: {}\n", GetParam().name, text, plan.status().ToString());
      continue;
    }
    const auto created = Model::Create(model_->weights(), *plan);
    ASSERT_TRUE(created.ok()) << created.status();
    const double kl = MeanKl(expected, Run(created->get()));
    EXPECT_TRUE(std::isfinite(kl));
    fmt::print("KL {} {}: {:.3g}\n", GetParam().name, text, kl);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, FamiliesTest, ::testing::ValuesIn(testing::GoldenModels()),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace kvlathe

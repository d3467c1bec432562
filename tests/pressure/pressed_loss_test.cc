// What a trained model loses by runs that were sealed again in fewer bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/scratch_folder.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"
#include "runtime/workspace.h"

namespace kvlathe {
namespace {

constexpr int kPromptTokens = 512;

class PressedLoss {
 public:
  explicit PressedLoss(const std::string& path) {
    setenv("XDG_CACHE_HOME", (kept_ / "cache").c_str(), 1);  // of what is calibrated
    OpenOptions options;
    options.model = path;
    options.kv = {kHigh, kLow, kPressed};
    options.ctx_size = 1024;
    options.kv_budget_bytes = int64_t{256} << 20;
    auto opened = Workspace::Open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    workspace_ = *std::move(opened);
    auto ids = workspace_->TokenizeFile(path + "/sample.txt");
    EXPECT_TRUE(ids.ok()) << ids.status();
    ids_ = *std::move(ids);
    if (const auto bos = workspace_->leading_bos()) ids_.insert(ids_.begin(), *bos);
    ids_.resize(std::min<size_t>(ids_.size(), 1024));
  }

  static constexpr const char* kHigh = "lathe(ratio=4,context=1024)";
  static constexpr const char* kLow = "lathe(ratio=8,context=1024)";
  static constexpr const char* kPressed = "lathe(ratio=4,under_pressure=8,context=1024)";

  // Logits behind every token of the second half of the text. `presses`: as soon as runs are there.
  std::vector<std::vector<float>> Logits(const std::string& kv, bool presses) {
    auto made = workspace_->MakeModel(kv);
    EXPECT_TRUE(made.ok()) << made.status();
    Model* const model = made->model.get();
    BlockPool pool(workspace_->kv_budget_bytes(), &model->machine().memory());
    SequenceCache cache(&model->layout(), &pool);
    cache.set_n_prompt(kPromptTokens);
    std::vector<std::vector<float>> logits;
    while (cache.n_tokens() < std::ssize(ids_)) {
      const int begin = cache.n_tokens();
      const int n =
          static_cast<int>(std::min<int64_t>({64, std::ssize(ids_) - begin, cache.max_step()}));
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, std::span(ids_).subspan(begin, n),
                              SequenceStep::Logits::kAll};
      EXPECT_TRUE(model->Forward({&step, 1}).ok());
      for (int t = 0; begin >= kPromptTokens && t < n; ++t) {
        logits.emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      while (presses && cache.RunToPress().has_value()) {
        EXPECT_TRUE(model->PressRun(&cache, *cache.RunToPress()).ok());
      }
    }
    n_bytes_ = cache.bytes().total();
    return logits;
  }
  int64_t n_bytes() const { return n_bytes_; }  // of the last cache

 private:
  ScratchFolder kept_;
  std::unique_ptr<Workspace> workspace_;
  std::vector<int32_t> ids_;
  int64_t n_bytes_ = 0;
};

// Of the first to the second, in nats per token.
double MeanKl(const std::vector<std::vector<float>>& from,
              const std::vector<std::vector<float>>& to) {
  double sum = 0;
  const auto log_sum = [](const std::vector<float>& logits) {
    const double most = *std::ranges::max_element(logits);
    double exps = 0;
    for (const float x : logits) exps += std::exp(x - most);
    return most + std::log(exps);
  };
  for (size_t i = 0; i < from.size(); ++i) {
    const double p_sum = log_sum(from[i]), q_sum = log_sum(to[i]);
    for (size_t id = 0; id < from[i].size(); ++id) {
      const double p = from[i][id] - p_sum, q = to[i][id] - q_sum;
      sum += std::exp(p) * (p - q);
    }
  }
  return sum / static_cast<double>(from.size());
}

TEST(PressedLoss, APressedCacheLosesAboutWhatOneOfTheHigherRatioDoes) {
  PressedLoss nano(KVLATHE_SOURCE_DIR "/models/lathe-nano");
  const auto plain = nano.Logits("none", false);
  const double low = MeanKl(plain, nano.Logits(PressedLoss::kHigh, false));
  const int64_t low_bytes = nano.n_bytes();
  const double high = MeanKl(plain, nano.Logits(PressedLoss::kLow, false));
  const int64_t high_bytes = nano.n_bytes();
  EXPECT_EQ(MeanKl(plain, nano.Logits(PressedLoss::kPressed, false)), low);
  EXPECT_EQ(nano.n_bytes(), low_bytes);
  const double pressed = MeanKl(plain, nano.Logits(PressedLoss::kPressed, true));
  const int64_t pressed_bytes = nano.n_bytes();
  RecordProperty("kl_ratio_4", std::to_string(low));
  RecordProperty("kl_ratio_8", std::to_string(high));
  RecordProperty("kl_pressed", std::to_string(pressed));
  EXPECT_GT(pressed, low);
  EXPECT_LT(pressed, 1.5 * high);
  EXPECT_LT(pressed_bytes, low_bytes);
  EXPECT_GE(pressed_bytes, high_bytes);
}

}  // namespace
}  // namespace kvlathe

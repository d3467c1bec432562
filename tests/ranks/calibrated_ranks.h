// Tests compare a small random model on several ranks with the same model on one machine. It is
// calibrated once, for all of them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "../properties/calibrated_model.h"
#include "../random_model.h"
#include "runtime/machines/machine_choice.h"
#include "thread_ranks.h"

namespace kvlathe::testing {

// Two layers of so many KV heads, each with two query heads.
inline RandomModelShape ShapeOfHeads(int n_kv_heads) {
  RandomModelShape shape;
  shape.n_heads = 2 * n_kv_heads;
  shape.n_kv_heads = n_kv_heads;
  shape.head_dim = 32;
  shape.max_positions = 4096;  // at which ratios hold
  return shape;
}

class CalibratedRanks {
 public:
  CalibratedRanks(const RandomModelShape& shape, const RankGrid& grid) {
    static int n_made = 0;
    directory_ = FreshDirectory(fmt::format("calibrated_ranks_{}", ++n_made));
    WriteRandomModel(shape, directory_, 23);
    model_ = OfFile(directory_);
    auto weights = ModelWeights::Load(model_.config, model_.types, model_.open(),
                                      MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    calibrated_ = std::make_unique<CalibratedModel>("shared", *std::move(weights), &threads_);
    model_.source = calibrated_.get();
    auto whole = RankParts::Load(model_, grid, nullptr);
    EXPECT_TRUE(whole.ok()) << whole.status();
    whole_ = *std::move(whole);
    ranks_ = std::make_unique<ThreadRanks>(model_, grid);
  }
  ~CalibratedRanks() { std::filesystem::remove_all(directory_); }

  const ModelConfig& config() const { return model_.config; }
  RankParts& whole() { return *whole_; }
  ThreadRanks& ranks() { return *ranks_; }

 private:
  std::string directory_;
  ThreadPool threads_{2};
  SharedModel model_;
  std::unique_ptr<CalibratedModel> calibrated_;
  std::unique_ptr<RankParts> whole_;
  std::unique_ptr<ThreadRanks> ranks_;
};

}  // namespace kvlathe::testing

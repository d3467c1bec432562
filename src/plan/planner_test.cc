#include "plan/planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <span>

#include "kv/cache_objects.h"
#include "kv/seal/seal_schedule.h"
#include "plan/drawn_source_fixture.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

const ModelFacts kTwoHeads = SmallModel(/*n_layers=*/2, /*n_kv_heads=*/2);

double BitsPerToken(const std::vector<HeadBasis>& heads) {
  double bits = 0;
  for (const HeadBasis& h : heads)
    bits += h.bits.middle.k.bits_per_token() + h.bits.middle.v.bits_per_token();
  return bits;
}

// The first layer sees all 4096 positions, the second 256.
TEST(PlannerTest, LayersThatHoldFewPositionsGetMoreBits) {
  DrawnSource source(kTwoHeads);
  ModelFacts model = kTwoHeads;
  const auto bits_of_layers = [&](const char* kv) {
    CachePlanner planner(model, &source);
    const StatusOr<CachePlan> plan = planner.MakePlan(*Spec::Parse(kv));
    EXPECT_TRUE(plan.ok()) << plan.status();
    const std::vector<HeadBasis>& heads = plan->basis()->heads;
    const size_t n = heads.size() / 2;
    return std::pair(BitsPerToken({heads.begin(), heads.begin() + n}),
                     BitsPerToken({heads.begin() + n, heads.end()}));
  };
  const auto even = bits_of_layers("lathe(ratio=6)");
  model.windows = {0, 256};
  const auto whole = bits_of_layers("lathe(ratio=6)");
  const auto shorter = bits_of_layers("lathe(ratio=6,context=1024)");
  EXPECT_GT(whole.second, 1.3 * even.second);
  EXPECT_GT(whole.second, shorter.second);
  EXPECT_GT(shorter.second, shorter.first);
}

// One map joins the heads of a layer, and has the channels of all of them.
TEST(PlannerTest, ResidentMapsHaveAllChannelsOfTheHeadsThatTheyJoin) {
  DrawnSource source(kTwoHeads);
  CachePlanner planner(kTwoHeads, &source);
  const int n_channels = 2 * kTwoHeads.head_dim;
  for (const double rate : {0.05, 0.25, 0.75}) {
    const StatusOr<CachePlan> plan =
        planner.MakePlan(*Spec::Parse("lathe(rate=0.5,resident=full)"), rate);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->layout().head_dim, n_channels);
    for (const BlockShape& shape : plan->row_shapes()) {
      EXPECT_EQ(shape.rank_k, n_channels);
      EXPECT_EQ(shape.rank_v, n_channels);
    }
    EXPECT_NEAR(plan->allocation()->removal_rate, rate, 0.1);
  }
}

TEST(PlannerTest, SpecsSayWhatStatisticsTheyNeed) {
  const auto needs_of = [](const char* kv) { return StatisticsNeedsOf(*Spec::Parse(kv)); };
  using Needs = std::vector<StatisticsNeed>;
  for (const char* kv : {"none", "kivi(bits=4)", "snapkv(keep=0.5)", "svd-online(rate=0.5)"}) {
    EXPECT_EQ(needs_of(kv), Needs()) << kv;
  }
  EXPECT_EQ(needs_of("kvquant(bits=4)"), Needs({{.of_text = true, .gradients = true}}));
  EXPECT_EQ(needs_of("fdc(rate=0.5)"), Needs({{.after_rope = true}}));
  StatisticsNeed of_lathe = {.of_text = true, .gradients = true, .after_rope = true};
  // A loss is predicted of text that was held back, which a file of maps has none of.
  EXPECT_EQ(needs_of("lathe(accuracy=0.9,keys=after)"), Needs({of_lathe}));
  of_lathe.maps_of = KeyRows::kAfterRope;
  EXPECT_EQ(needs_of("lathe(ratio=4,keys=after)"), Needs({of_lathe}));
  EXPECT_EQ(needs_of("lathe(ratio=4,keys=auto)+h2o"), Needs({of_lathe}));
  of_lathe.maps_of = KeyRows::kCentred;
  EXPECT_EQ(needs_of("lathe(ratio=4,keys=auto)"), Needs({of_lathe}));
  of_lathe.after_rope = false;
  of_lathe.maps_of = KeyRows::kBlock;
  EXPECT_EQ(needs_of("lathe(ratio=4,keys=block)"), Needs({of_lathe}));
  EXPECT_EQ(needs_of("lathe(ratio=4,keys=block,maps=joint)"),
            Needs({{.of_text = true, .gradients = true, .key_values = true}}));
  of_lathe.maps_of = KeyRows::kBeforeRope;
  EXPECT_EQ(needs_of("lathe(ratio=4,keys=before)"), Needs({of_lathe}));
  // Maps that come with a model are not of gradients through all queries.
  const StatisticsNeed of_ranks = {.of_text = true, .gradients = true, .after_rope = true};
  EXPECT_EQ(needs_of("lathe(rate=0.25)"), Needs({of_ranks}));
  EXPECT_EQ(needs_of("lathe(ratio=2,bits=16)"), Needs({of_ranks}));
  EXPECT_EQ(needs_of("palu(rate=0.5,group=2)"), Needs({{.of_text = true, .across_heads = true}}));
  const StatisticsNeed after = {.of_text = true, .after_rope = true};
  const StatisticsNeed of_codebooks = {.of_text = true, .gradients = true, .after_rope = true};
  EXPECT_EQ(needs_of("zack(rate=0.5)+kvquant(bits=4)"), Needs({after, of_codebooks}));
  const Needs merged = needs_of("zack(rate=0.5)+pool(n=4)");
  ASSERT_EQ(merged.size(), 1);
  EXPECT_EQ(merged[0].merge, MergePlan{.every = 4});
}

TEST(PlannerTest, RatioHoldsAtTheContextThatIsNamed) {
  DrawnSource source(kTwoHeads);
  CachePlanner planner(kTwoHeads, &source);
  const double at_model = planner.FractionOf(*Spec::Parse("lathe(ratio=4)")).value();
  const double at_512 = planner.FractionOf(*Spec::Parse("lathe(ratio=4,context=512)")).value();
  for (const double fraction : {at_model, at_512}) {
    EXPECT_LE(fraction, 0.25);
    EXPECT_GT(fraction, 0.2);
  }
  const Status beyond = planner.FractionOf(*Spec::Parse("lathe(ratio=4,context=8192)")).status();
  EXPECT_EQ(beyond.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(beyond.ToString(), HasSubstr("beyond the model's context of 4096"));
}

// Pressed runs are those of the higher ratio, byte for byte; all else is as it was.
TEST(CachePlanner, RunsUnderPressureHaveTheBitsOfTheHigherRatio) {
  DrawnSource source(kTwoHeads);
  CachePlanner planner(kTwoHeads, &source);
  const auto layout_of = [&](const char* text) {
    const auto plan = planner.MakePlan(*Spec::Parse(text));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->layout();
  };
  for (const char* keys :
       {"", ",keys=centred", ",keys=before", ",keys=block", ",scales=static", ",heads=own"}) {
    SCOPED_TRACE(keys);
    const CacheLayout pressed =
        layout_of(fmt::format("lathe(ratio=4,under_pressure=8{})", keys).c_str());
    const CacheLayout low = layout_of(fmt::format("lathe(ratio=4{})", keys).c_str());
    const CacheLayout high = layout_of(fmt::format("lathe(ratio=8{})", keys).c_str());
    const std::vector<RunExtent> runs = RunsOf(pressed, 4000, 3000);
    ASSERT_GT(runs.size(), 6u);
    for (int l = 0; l < pressed.n_layers; ++l) {
      for (int g = 0; g < pressed.n_kv_heads; ++g) {
        const auto bits = std::get<HeadBits>(pressed.storage(l, g));
        EXPECT_EQ(bits.middle, std::get<HeadBits>(low.storage(l, g)).middle);
        EXPECT_EQ(bits.pressed, std::get<HeadBits>(high.storage(l, g)).middle);
        EXPECT_GE(BytesPressedOff(pressed, HeadInRunOf(pressed, l, g), runs[0]), 0);
      }
    }
    EXPECT_EQ(SequenceBytes(pressed, 4000, 1, 3000), SequenceBytes(low, 4000, 1, 3000));
    std::vector<int> places(runs.size());
    std::iota(places.begin(), places.end(), 0);
    // But for its open block, which has 16 bits here and 8 at the higher ratio.
    const auto block_bytes = [&](const CacheLayout& layout, std::span<const int> of) {
      return SequenceParts(layout, {4000, 1, 3000, of}).blocks;
    };
    const int64_t n_open = BlocksFor(pressed, 4000) - SealedBlocks(pressed, 4000, 3000);
    int64_t open_bytes = 0;
    for (size_t i = 0; i < pressed.shapes.size(); ++i) {
      open_bytes += n_open * (BlockObjectBytes(pressed, pressed.shapes[i]) -
                              BlockObjectBytes(high, high.shapes[i]));
    }
    EXPECT_EQ(block_bytes(pressed, places), block_bytes(high, {}) + open_bytes);
  }
  // The higher ratio alone would code its open block, and so have more bits for its runs.
  const Status status =
      planner.MakePlan(*Spec::Parse("lathe(ratio=4.99,under_pressure=5,context=1024)")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("give a higher ratio, or open=8"));
}

class PredictedAnswer : public ::testing::Test {
 protected:
  StatusOr<PredictedCache> Answer(const std::string& kv) {
    return planner_.AnswerByPrediction(*Spec::Parse(kv));
  }
  double PredictedKl(const std::string& kv) { return planner_.PredictKl(*Spec::Parse(kv)).value(); }

  DrawnSource source_{kTwoHeads};
  CachePlanner planner_{kTwoHeads, &source_};
};

TEST_F(PredictedAnswer, IsTheLargestRatioInTenthsThatKeepsTheKl) {
  for (const double accuracy : {0.9, 0.98, 0.995}) {
    for (const char* keys : {"", ",keys=before", ",scales=static", ",classes=3"}) {
      const std::string asked = fmt::format("lathe(accuracy={}{})", accuracy, keys);
      const StatusOr<PredictedCache> answer = Answer(asked);
      ASSERT_TRUE(answer.ok()) << answer.status();
      const double ratio = RanksOf(*answer->spec.basis())->value;
      EXPECT_EQ(ratio, std::round(10 * ratio) / 10);
      EXPECT_EQ(answer->spec, *Spec::Parse(fmt::format("lathe(ratio={}{})", ratio, keys)));
      EXPECT_EQ(answer->spec.text(), asked);
      EXPECT_EQ(answer->predicted_kl, planner_.PredictKl(answer->spec).value());
      EXPECT_LE(answer->predicted_kl, -std::log(accuracy));
      const std::string next = fmt::format("lathe(ratio={:.1f}{})", ratio + 0.1, keys);
      EXPECT_GT(PredictedKl(next), -std::log(accuracy)) << next;
    }
  }
}

TEST_F(PredictedAnswer, GrowsAsLessIsAsked) {
  EXPECT_LT(Answer("lathe(accuracy=0.99)")->predicted_kl,
            Answer("lathe(accuracy=0.9)")->predicted_kl);
  EXPECT_LT(PredictedKl("lathe(ratio=4)"), PredictedKl("lathe(ratio=6)"));
}

TEST_F(PredictedAnswer, NamesWhatNothingIsPredictedOf) {
  const auto refused = [&](const std::string& kv) {
    const StatusOr<PredictedCache> answer = Answer(kv);
    EXPECT_EQ(answer.status().code(), StatusCode::kUnimplemented) << kv;
    EXPECT_THAT(answer.status().ToString(), HasSubstr("--kv '" + kv + "'"));
    return answer.status().ToString();
  };
  for (const char* kv : {"fdc(accuracy=0.9)", "lathe(accuracy=0.9)+kivi(bits=4)",
                         "lathe(accuracy=0.9)+snapkv(keep=0.5)"}) {
    EXPECT_THAT(refused(kv), HasSubstr("lathe alone"));
  }
  EXPECT_THAT(refused("lathe(accuracy=0.9,bits=16)"), HasSubstr("where it splits bits"));
}

TEST_F(PredictedAnswer, SaysWhereNoCacheIsAccurateEnough) {
  const StatusOr<PredictedCache> answer = Answer("lathe(accuracy=1)");
  EXPECT_EQ(answer.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(answer.status().ToString(), HasSubstr("even ratio=1"));
}

TEST_F(PredictedAnswer, NeedsTextThatWasHeldBack) {
  source_.statistics.held_back.n_tokens = 0;
  const StatusOr<PredictedCache> answer = Answer("lathe(accuracy=0.9)");
  EXPECT_EQ(answer.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(answer.status().ToString(), HasSubstr("kvlathe calibrate --text FILE"));
}

}  // namespace
}  // namespace kvlathe

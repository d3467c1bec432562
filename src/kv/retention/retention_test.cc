#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "kv/cache_layout.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/prompt_repeat.h"
#include "kv/retention/retention_methods.h"
#include "kv/retention/retention_plan.h"

namespace kvlathe {
namespace {

RetentionPlan PlanOf(const char* text) {
  const StatusOr<Spec> spec = Spec::Parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *RetentionPlanOf(*spec);
}

TEST(RetentionPlan, BudgetsAreThoseOfTheSpec) {
  const PromptPlace place = {.n_sink = 4, .n_prompt = 1000};
  const auto kept = [&](const char* text, int64_t n_tokens) {
    const KeptEntries k = KeptAt(PlanOf(text), place, n_tokens);
    return std::pair(k.n, k.n_recent);
  };
  EXPECT_EQ(kept("h2o(keep=0.1)", 1010), std::pair(int64_t{97}, int64_t{50}));
  EXPECT_EQ(kept("h2o(keep=0.1)", 1020), std::pair(int64_t{98}, int64_t{51}));
  EXPECT_EQ(kept("h2o(keep=0.1,budget=prompt)", 2000), std::pair(int64_t{96}, int64_t{50}));
  EXPECT_EQ(kept("h2o(budget=3)", 100), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(kept("mas(keep=0.1)", 1020), kept("h2o(keep=0.1)", 1020));
  EXPECT_TRUE(PlanOf("mas").averages_votes && !PlanOf("h2o").averages_votes);
  EXPECT_EQ(kept("tova(budget=512)", 600), std::pair(int64_t{508}, int64_t{1}));
  EXPECT_EQ(kept("window(size=100)", 600), std::pair(int64_t{100}, int64_t{100}));
  EXPECT_EQ(kept("snapkv(budget=8,window=32)", 1000), std::pair(int64_t{32}, int64_t{32}));
  EXPECT_EQ(kept("kvzip(keep=0.1,window=16)", 1000), std::pair(int64_t{96}, int64_t{16}));
}

// Nothing is sealed before the prompt ends, whoever seals it; behind it entries may outgrow the
// budget, where anything is dropped at all.
TEST(RetentionPlan, SealedBudgetsHaveSlack) {
  for (const char* text : {"h2o+kivi", "lathe(ratio=8)+h2o", "lathe(ratio=8)+tova",
                           "fdc+keyformer(interval=4)+int8", "fdc+keyformer(interval=90)+int8"}) {
    const RetentionPlan plan = PlanOf(text);
    EXPECT_TRUE(plan.prunes_runs && plan.prunes_decode) << text;
    EXPECT_EQ(plan.slack, 0.25) << text;
    EXPECT_EQ(plan.interval, std::string_view(text).find("90") != std::string_view::npos ? 90 : 64)
        << text;
    EXPECT_EQ(SealPlanOf(*Spec::Parse(text))->prompt_run, 0) << text;
  }
  EXPECT_EQ(PlanOf("lathe(rate=0.5)+h2o").slack, 0);
  EXPECT_FALSE(PlanOf("snapkv+kivi").prunes_decode);
  EXPECT_FALSE(RetentionPlanOf(*Spec::Parse("lathe(ratio=4)+window")).has_value());
}

TEST(RetentionPlan, PrunePointsDependOnPositionsAlone) {
  const PromptPlace place = {.n_sink = 4, .n_prompt = 1300};
  const auto points = [&](const char* text) {
    std::vector<int64_t> found;
    for (int64_t n = 1; n <= 1306; ++n) {
      if (IsPrunePoint(PlanOf(text), place, n)) found.push_back(n);
    }
    return found;
  };
  using Points = std::vector<int64_t>;
  EXPECT_EQ(points("h2o"), (Points{516, 1028, 1300, 1301, 1302, 1303, 1304, 1305, 1306}));
  EXPECT_EQ(points("keyformer(interval=3,prune=prompt)"), (Points{1300, 1303, 1306}));
  EXPECT_EQ(points("snapkv"), (Points{1300}));
  EXPECT_EQ(points("kvzip"), (Points{1300}));
}

// The prompt once more, in chunks behind all but its last token.
TEST(PromptRepeat, ReadsEveryTokenButTheLastBehindWords) {
  const std::vector<int32_t> prompt = {20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 99};
  const RepeatPlan plan = {.chunk = 5, .first_words = {1, 2}, .later_words = {3}, .end_words = {4}};
  const std::vector<std::vector<int32_t>> want = {{1, 2, 4, 20, 21, 22, 23, 24},
                                                  {3, 20, 21, 22, 23, 24, 4, 25, 26, 27, 28, 29},
                                                  {3, 22, 23, 24, 25, 26, 27, 28, 29, 4, 30, 31}};
  for (const int64_t n_most : {1, 3, 100}) {
    PromptRepeat repeat(&plan, std::ssize(prompt));
    std::vector<std::vector<int32_t>> chunks(1);
    int64_t most = 0;
    while (!repeat.is_done()) {
      const std::vector<int32_t> tokens = repeat.Next(prompt, n_most);
      ASSERT_FALSE(tokens.empty());
      ASSERT_LE(std::ssize(tokens), n_most);
      chunks.back().insert(chunks.back().end(), tokens.begin(), tokens.end());
      most = std::max<int64_t>(most, std::ssize(chunks.back()));
      if (repeat.Advance(prompt, std::ssize(tokens))) chunks.emplace_back();
    }
    chunks.pop_back();
    EXPECT_EQ(chunks, want);
    EXPECT_LE(most, MostRepeated(plan, std::ssize(prompt)));
    EXPECT_TRUE(repeat.Next(prompt, 5).empty());
  }
}

// What is read again takes room behind the prompt, and none where nothing is dropped.
TEST(RetentionPlan, PeaksCountWhatIsReadAgain) {
  const PromptPlace place = {.n_sink = 4, .n_prompt = 1000};
  const auto most = [&](const char* text, int64_t n_tokens) {
    RetentionPlan plan = PlanOf(text);
    plan.repeat.first_words = {1, 2, 3};
    return RetainedAt(plan, place, n_tokens).max_blocks;
  };
  EXPECT_EQ(most("kvzip(keep=0.5,heads=own)", 999), (995 + 63) / 64);
  EXPECT_EQ(most("kvzip(keep=0.5,heads=own)", 1000), (995 + 999 + 3 + 63) / 64);
  EXPECT_EQ(most("kvzip(keep=0.5,heads=own,chunk=100)", 1000), (995 + 8 + 100 + 63) / 64);
  EXPECT_EQ(most("kvzip(keep=1,heads=own)", 1000), (996 + 63) / 64);
}

// Whether a head with n_entries is cut behind the prompt, where budgets have slack.
bool HasOutgrownBudget(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens,
                       int64_t n_entries) {
  if (!plan.of_prompt && 1 - (1 + plan.slack) * plan.keep < 1e-3) return false;
  const int64_t budget = KeptAt(plan, place, n_tokens).n, excess = n_entries - budget;
  return excess >= plan.interval &&
         static_cast<double>(excess) >= plan.slack * static_cast<double>(budget);
}

// Every prune, one after the other.
RetainedLength Simulate(const RetentionPlan& plan, const PromptPlace& place, int64_t n_tokens) {
  RetainedLength length;
  for (int64_t n = 1; n <= n_tokens; ++n) {
    if (n > place.n_sink) ++length.n_entries;
    length.n_blocks = std::max(length.n_blocks, (length.n_entries + 63) / 64);
    length.max_blocks = std::max(length.max_blocks, length.n_blocks);
    const bool is_point = IsPrunePoint(plan, place, n);
    if (plan.slack > 0 && n > place.n_prompt) {
      EXPECT_EQ(is_point, HasOutgrownBudget(plan, place, n, length.n_entries)) << n;
    }
    if (!is_point) continue;
    const int64_t kept = std::min(length.n_entries, KeptAt(plan, place, n).n);
    length.n_blocks = BlocksAfterPrune(plan, length.n_entries, kept);
    length.n_entries = kept;
  }
  return length;
}

TEST(RetentionPlan, LengthsEqualASimulation) {
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    RetentionPlan plan;
    plan.votes = RetentionPlan::Votes::kAll;
    if (random.Below(2) == 0) {
      plan.keep = 0.05 + 0.95 * random.Uniform();
    } else {
      plan.n_kept = 1 + static_cast<int>(random.Below(400));
    }
    plan.of_prompt = plan.keep > 0 && random.Below(3) == 0;
    plan.recent_share = random.Below(2) == 0 ? 0 : random.Uniform();
    plan.n_recent = 1 + static_cast<int>(random.Below(40));
    plan.prunes_runs = random.Below(2) == 0;
    plan.prunes_decode = random.Below(4) != 0;
    plan.run = 64 * (1 + static_cast<int>(random.Below(4)));
    plan.interval = 1 + static_cast<int>(random.Below(2) * random.Below(90));
    if (plan.prunes_decode && random.Below(2) == 0) plan.slack = 0.01 + random.Uniform();
    const PromptPlace place = {.n_sink = static_cast<int>(random.Below(6)),
                               .n_prompt = random.Below(8) == 0
                                               ? std::numeric_limits<int64_t>::max()
                                               : 1 + static_cast<int64_t>(random.Below(900))};
    for (int64_t n : {1, 3, 63, 64, 65, 129, 300, 577, 801, 1200, 4000}) {
      const RetainedLength want = Simulate(plan, place, n), got = RetainedAt(plan, place, n);
      ASSERT_EQ(got.n_entries, want.n_entries) << "case " << i << " at " << n;
      ASSERT_EQ(got.n_blocks, want.n_blocks) << "case " << i << " at " << n;
      ASSERT_EQ(got.max_blocks, want.max_blocks) << "case " << i << " at " << n;
    }
  }
}

// Two heads of 32 dimensions, of 16 and 32 columns of keys and 16 of values.
TEST(RetentionPlan, BytesOfWholeKeysAreTheseNumbers) {
  CacheLayout layout{1, 2, 32, 4, {{16, 16, DType::kBf16}, {32, 16, DType::kBf16}}};
  layout.retention = PlanOf("fdc+snapkv(budget=100,score=exact)");
  constexpr int64_t kSinks = 2 * 4 * (32 + 16) * 2, kTables = 2 * 64;
  constexpr int64_t kPrompt = 4 + 3 * 64;
  const auto entries = [](int64_t n_blocks) { return 2 * n_blocks * 64 * (4 + 8); };
  const int64_t in_prompt = kSinks + kTables + 2 * 3 * 64 * 2 * (32 + 16) + entries(3);
  EXPECT_EQ(SequenceBytes(layout, kPrompt - 1, 1, kPrompt), in_prompt);
  // 96 entries are left, and nothing is voted on any more.
  const int64_t left = kSinks + kTables + 2 * 64 * 2 * (16 + 16 + 32 + 16);
  EXPECT_EQ(SequenceBytes(layout, kPrompt, 1, kPrompt), left);
  EXPECT_EQ(PeakSequenceBytes(layout, kPrompt + 64, 512, kPrompt), in_prompt);
  // Far behind the prompt it is what was cut that takes most.
  CacheLayout stored = layout;
  stored.retention->reads_whole_keys = false;
  EXPECT_EQ(PeakSequenceBytes(stored, kPrompt, 512, kPrompt), in_prompt - 3 * 64 * 2 * (32 - 16));
  EXPECT_EQ(PeakSequenceBytes(layout, kPrompt + 1000, 512, kPrompt),
            PeakSequenceBytes(stored, kPrompt + 1000, 512, kPrompt));
}

// The bound that a sequence is admitted by: a prompt never holds much more than what stays of it.
TEST(RetentionPlan, LongPromptsStayNearTheirShare) {
  CacheLayout none{4, 8, 128, 0, std::vector<BlockShape>(32, {128, 128, DType::kBf16})};
  CacheLayout quarter = none;
  quarter.retention = PlanOf("h2o(keep=0.25,sink=0)");
  constexpr int kPrompt = 32768;
  const auto peak = [](const CacheLayout& layout) {
    return static_cast<double>(PeakSequenceBytes(layout, kPrompt, 2048, kPrompt));
  };
  EXPECT_LT(peak(quarter), 0.3 * peak(none));
  quarter.retention = PlanOf("h2o(keep=0.25,prune=prompt,sink=0)");
  EXPECT_GT(peak(quarter), peak(none));
  for (const char* text : {"h2o(keep=0.25)+kivi(bits=2)", "tova(keep=0.25)+gear(bits=4)"}) {
    const Spec spec = *Spec::Parse(text);
    quarter.seal = SealPlanOf(spec);
    quarter.retention = RetentionPlanOf(spec);
    EXPECT_LT(peak(quarter), 0.4 * peak(none)) << text;
    EXPECT_LT(static_cast<double>(SequenceBytes(quarter, kPrompt, 1, kPrompt)), 0.11 * peak(none));
  }
}

TEST(RetentionPlan, TemperatureGrowsOverWhatIsGenerated) {
  const RetentionPlan plan = PlanOf("keyformer(tau_init=1,tau_end=3)");
  const PromptPlace place = {.n_prompt = 10};
  EXPECT_EQ(TemperatureAt(plan, place, 9, 4), 1);
  EXPECT_EQ(TemperatureAt(plan, place, 10, 4), 1.5);
  EXPECT_EQ(TemperatureAt(plan, place, 13, 4), 3);
  EXPECT_EQ(TemperatureAt(plan, place, 99, 4), 3);
  EXPECT_EQ(TemperatureAt(plan, place, 99, 0), 1);
}

}  // namespace
}  // namespace kvlathe

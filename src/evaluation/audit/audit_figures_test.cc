#include "evaluation/audit/audit_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace kvlathe {
namespace {

TEST(AuditFigures, AreThoseOfAllPositions) {
  AuditFigures figures;
  figures.Add({.kl = {0.1, 0.2, 0.3}, .n_agree = 2, .first_parted = 1});
  figures.Add({.kl = {0.4}, .n_agree = 1, .first_parted = std::nullopt});
  figures.Add({.kl = {0, 0, 0, 0, 0}, .n_agree = 4, .first_parted = 4});
  EXPECT_EQ(figures.n_answers(), 3);
  EXPECT_EQ(figures.n_positions(), 9);
  EXPECT_DOUBLE_EQ(figures.mean_kl(), 1.0 / 9);
  EXPECT_DOUBLE_EQ(figures.top1_agreement(), 7.0 / 9);
  EXPECT_EQ(figures.n_parted(), 2);
  EXPECT_DOUBLE_EQ(figures.mean_parted_at(), 2.5);
  EXPECT_EQ(figures.KlQuantile(0.5), 0);
  EXPECT_EQ(figures.KlQuantile(1), 0.4);  // the largest is exact
}

TEST(AuditFigures, QuantilesAreNearThoseOfTheSortedValues) {
  AuditFigures figures;
  std::vector<double> all;
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    ReplayScore score;
    for (int p = 0; p < 50; ++p) score.kl.push_back(std::exp(4 * random.Normal() - 6));
    all.insert(all.end(), score.kl.begin(), score.kl.end());
    figures.Add(score);
  }
  std::sort(all.begin(), all.end());
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = all[static_cast<size_t>(std::ceil(share * std::ssize(all))) - 1];
    EXPECT_GE(figures.KlQuantile(share), exact * (1 - 1e-9) - 1e-9) << share;
    EXPECT_LE(figures.KlQuantile(share), exact * AuditFigures::kClassRatio + 2e-9) << share;
  }
}

TEST(AuditFigures, OfNothingAreZero) {
  const AuditFigures figures;
  EXPECT_EQ(figures.mean_kl(), 0);
  EXPECT_EQ(figures.KlQuantile(0.5), 0);
  EXPECT_EQ(ToJson(figures)["parted_at"], nullptr);
}

TEST(AuditFigures, ALabelNamesTheRateOfARequest) {
  EXPECT_EQ(AuditLabel("none", std::nullopt), "none");
  EXPECT_EQ(AuditLabel("fdc(resident=full)", 0.25), "fdc(resident=full) at 0.25");
}

}  // namespace
}  // namespace kvlathe

#include "server/audit/audit_budget.h"

#include <gtest/gtest.h>

namespace kvlathe::server {
namespace {

// Times of an audit beside an engine whose steps take `step` seconds.
struct Times {
  double engine = 0;
  double audit = 0;
  int n_most_in_a_row = 0;  // pieces beside steps without one in between
  double share() const { return audit / (audit + engine); }
};

Times RunBeside(AuditBudget* budget, int n_steps, double step, double piece) {
  Times times;
  int n_in_a_row = 0;
  for (int i = 0; i < n_steps; ++i) {
    budget->NoteStep(step);
    times.engine += step;
    if (!budget->AllowsPiece()) {
      n_in_a_row = 0;
      continue;
    }
    times.n_most_in_a_row = std::max(times.n_most_in_a_row, ++n_in_a_row);
    budget->NoteBeside(piece);
    times.audit += piece;
  }
  return times;
}

TEST(AuditBudget, KeepsTheShareThatWasAskedFor) {
  for (const double share : {0.01, 0.05, 0.3}) {
    for (const double piece : {0.002, 0.02, 0.5}) {
      AuditBudget budget(share);
      const Times times = RunBeside(&budget, 200000, 0.02, piece);
      // The first piece may come before anything is known of its length.
      EXPECT_LE(times.audit, share * (times.audit + times.engine) + piece) << share << piece;
      EXPECT_GE(times.share(), 0.8 * std::min(share, piece / (piece + 0.02))) << share << piece;
    }
  }
}

TEST(AuditBudget, DoesNotSaveUpForHours) {
  AuditBudget budget(0.1);
  budget.NoteIdle(0.05);
  for (int i = 0; i < 1000000; ++i) budget.NoteStep(0.02);
  const Times times = RunBeside(&budget, 20, 0.02, 0.05);
  EXPECT_LE(times.n_most_in_a_row, 3);
  EXPECT_LE(times.audit, 0.1 * (times.audit + times.engine) + 3 * 0.05);
}

TEST(AuditBudget, WhatIdleTimeTakesCostsNothing) {
  AuditBudget budget(0.1);
  for (int i = 0; i < 1000; ++i) budget.NoteIdle(0.01);
  EXPECT_FALSE(budget.AllowsPiece());
  budget.NoteStep(0.2);
  EXPECT_TRUE(budget.AllowsPiece());
}

TEST(AuditBudget, APieceThatTookLongIsPaidOff) {
  AuditBudget budget(0.1);
  budget.NoteStep(1);
  ASSERT_TRUE(budget.AllowsPiece());
  budget.NoteBeside(5);  // of 0.1 that it had
  const Times times = RunBeside(&budget, 1000, 0.02, 0.001);
  EXPECT_EQ(times.audit, 0);  // 20 seconds earn 2
}

}  // namespace
}  // namespace kvlathe::server

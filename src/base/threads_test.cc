#include "base/threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace kvlathe {
namespace {

TEST(ThreadPool, RunsEveryWorkerOncePerJob) {
  for (int n_workers : {1, 2, 5}) {
    ThreadPool pool(n_workers);
    std::vector<int> calls(n_workers, 0);
    for (int job = 0; job < 1000; ++job) pool.Run([&](int id) { ++calls[id]; });
    for (int c : calls) EXPECT_EQ(c, 1000);
  }
}

TEST(ThreadPool, WakesParkedWorkers) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.Run([&](int) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 15);
}

TEST(ShareOf, CoversEverythingOnceInSteps) {
  for (int64_t n : {0, 1, 16, 100, 1023}) {
    for (int64_t step : {1, 16, 64}) {
      for (int n_workers : {1, 2, 7}) {
        int64_t expected_begin = 0;
        for (int id = 0; id < n_workers; ++id) {
          const Range r = ShareOf(n, step, id, n_workers);
          EXPECT_EQ(r.begin, expected_begin);
          if (r.end != n) {
            EXPECT_EQ(r.end % step, 0);
          }
          expected_begin = r.end;
        }
        EXPECT_EQ(expected_begin, n);
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe

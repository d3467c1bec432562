#include "base/threads.h"

#include <gtest/gtest.h>
#include <sched.h>

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

// The processors that a thread may use.
std::vector<int> ProcessorsOfThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

TEST(ThreadPool, PinsEachWorkerButTheCallerToItsProcessor) {
  const std::vector<int> usable = ProcessorsOfThread();
  ThreadPool pool(static_cast<int>(usable.size()));
  std::vector<std::vector<int>> places(usable.size());
  pool.Run([&](int id) { places[id] = ProcessorsOfThread(); });
  for (const std::vector<int>& place : places) EXPECT_EQ(place, usable);
  ASSERT_TRUE(pool.Pin().ok());
  pool.Run([&](int id) { places[id] = ProcessorsOfThread(); });
  EXPECT_EQ(places[0], usable);
  for (size_t id = 1; id < places.size(); ++id) EXPECT_EQ(places[id], std::vector{usable[id]});
}

TEST(ThreadPool, PinsNoMoreWorkersThanProcessors) {
  ThreadPool pool(AvailableProcessors() + 1);
  const Status status = pool.Pin();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(status).find("at most one thread per processor"), std::string::npos);
  pool.Run([&](int) { EXPECT_EQ(ProcessorsOfThread().size(), AvailableProcessors()); });
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

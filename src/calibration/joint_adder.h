// Adds rows of several KV heads side by side to sums of their moments.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "calibration/moment_sums.h"

namespace kvlathe {

// Rows [n_rows, width], stride apart.
struct AdderRows {
  const float* first;
  int64_t n_rows;
  int64_t stride;
  int64_t width;
};

// Rows that are centred and what JointSums take of them, slice by slice, on all workers of a pool.
class JointAdder {
 public:
  // `pool` outlives this.
  explicit JointAdder(ThreadPool* pool) : pool_(pool), products_(pool->n_workers()) {}

  // Adds rows [n_rows, width], row_stride apart, to moments `idx`; weights [n_rows] or null.
  void Add(const float* rows, int64_t n_rows, int64_t row_stride, const float* weights,
           int64_t width, int64_t idx, JointSums* sums);
  // sums [width, width] += X^T X of the rows as they are.
  void AddSquares(const AdderRows& rows, float* sums);

 private:
  ThreadPool* pool_;
  std::vector<float> centred_;
  std::vector<std::vector<float>> products_;  // of the workers
};

}  // namespace kvlathe

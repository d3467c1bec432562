// Votes of entries on a GPU: what cpu/kernels/attend/entry_scores.h adds, of jobs that the
// attention of a layer has left scores of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "format/entry_table.h"

namespace kvlathe::cuda {

// Rows of one job; EntryScoreParams with addresses on the device.
struct EntryScoreItem {
  float* scores = nullptr;  // [n_rows, stride], not scaled; with noise they are overwritten
  int64_t stride = 0;
  int n_rows = 0;
  int gqa_group = 1;
  int first_visible = 0;
  int n_entries = 0;
  float sm_scale = 1;
  const float* row_max = nullptr;  // [n_rows], of the scaled scores; not used with noise
  const float* row_sum = nullptr;
  bool has_noise = false;
  ScoreNoise noise;
  std::byte* table = nullptr;  // an EntryTable with sums
};

// Adds the probabilities of all rows. `items` lies on the device and is read when the work runs;
// max_entries and max_rows are the largest of all items. Items may share a table.
void AddEntryScores(cudaStream_t stream, const EntryScoreItem* items, int n_items, int max_rows,
                    int max_entries);

}  // namespace kvlathe::cuda

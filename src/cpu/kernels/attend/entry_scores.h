// The attention mass of cache entries, by which retention chooses: column sums of the attention
// probabilities (H2O), or of probabilities from noisy scores (Keyformer), or the largest in each
// column (KVzip).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"
#include "format/entry_table.h"

namespace kvlathe {

// Rows of queries and their scores against the entries of one head. Row r belongs to token
// r / gqa_group and sees entries < first_visible + r / gqa_group.
struct EntryScoreParams {
  // [n_rows, stride] of q k, not scaled (AttendParams::scores); the noisy sums overwrite them. What
  // lies behind the entries, up to whole blocks of them, is read and not used.
  float* scores = nullptr;
  int64_t stride = 0;
  int n_rows = 0;
  int gqa_group = 1;
  int first_visible = 0;
  int n_entries = 0;
  float sm_scale = 1;
  // The maximum and the sum of each row's softmax over all that it sees, sinks included. They are
  // not used with noise, whose probabilities are over these entries alone.
  const float* row_max = nullptr;
  const float* row_sum = nullptr;
  const ScoreNoise* noise = nullptr;  // null: probabilities are added as they are
  bool takes_largest = false;         // the largest of all probabilities counts, not their sum
  EntryTable table;
};

struct EntryScoreKernels {
  // Adds the probabilities of every row to the sums of the entries, or makes these the largest that
  // there were. Calls on one table may run at the same time.
  void (*add)(const EntryScoreParams& params);
};

const EntryScoreKernels& GetEntryScoreKernels(Isa isa);

}  // namespace kvlathe

// A stored error is what sealing loses: the rows that a cache holds are compared with those that
// went into it, and it is counted how much of the difference a low-rank repair could hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/model.h"

namespace kvlathe {

// Of the sealed runs of a prompt, over all runs and KV heads.
struct StoredError {
  double relative = 0;  // squared errors / squared values of the rows
  // [head_dim]: the share of the squared errors in the first r + 1 singular values of the errors of
  // one run and head, [entries, head_dim]: what a repair of rank r + 1 per run and head removes at
  // best.
  std::vector<double> shares;
  // [head_dim]: the same of white noise in matrices of the same shapes, which has no directions.
  std::vector<double> white_shares;
};

struct LayerErrors {
  StoredError k, v;
};

// Reads the tokens as a prompt. The model stores rows as they are (no basis), drops and merges
// none, and seals: anything else is kInvalidArgument, as is a prompt of which nothing is sealed.
// Keys that are sealed as they were before RoPE are compared before it.
StatusOr<std::vector<LayerErrors>> MeasureStoredErrors(Model* model,
                                                       std::span<const int32_t> tokens,
                                                       int64_t kv_budget_bytes);

}  // namespace kvlathe

// What a layer with experts asks of a backend: which experts a row goes to, and products with the
// matrices of those alone. As the plans of machine/plans.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "machine/object_id.h"
#include "machine/residents.h"
#include "tensor/dtype.h"

namespace kvlathe {

// How the logits of a row become experts and weights (ExpertsConfig of model/config.h, where the
// parts are explained).
struct RouteRule {
  enum class Score { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSparseMixer };
  Score score = Score::kSoftmax;
  int n_used = 1;
  bool normalises = false;
  float min_sum = 0;
  bool adds_min_sum = false;
  float scale = 1;
  int n_groups = 1;  // of equally many experts, those of a group side by side
  int n_used_groups = 1;
  bool groups_sum_two = true;
  float mixer_jitter = 0.01f;
};

struct RoutePlan {
  RouteRule rule;
  int n_experts = 0;
  int64_t n_rows = 0;
  ObjectPlace x;  // [n_rows, n_in] F32, dense
  // [n_experts, n_in], kF32; with has_gate_row [n_experts + 1, n_in].
  WeightId router;
  // Whether the last row is that of a gate: RoutedRows::gates is the sigmoid of its product.
  bool has_gate_row = false;
  ObjectPlace bias;         // [n_experts] F32, added to logits; null: none
  ObjectPlace choice_bias;  // [n_experts] F32, added to scores where they choose; null: none
};

// The experts that rows go to, all of a row different.
struct RoutedRows {
  std::vector<int32_t> experts;  // [n_rows, n_used], those that were chosen first come first
  std::vector<float> weights;    // [n_rows, n_used]
  std::vector<float> gates;      // [n_rows], or empty
};

// Row i at `to` becomes row from[i] at `x`.
struct GatherRowsPlan {
  ObjectPlace x;
  ObjectPlace to;  // of other memory
  int64_t row_bytes = 0;
  std::span<const int64_t> from;
};

// Products y = x W^T + bias with matrices of one shape, each of rows of its own.
struct ExpertProductsPlan {
  struct Item {
    WeightId w;           // [n_out, n_in]
    ObjectPlace bias;     // [n_out] F32; null: none
    int64_t first_x = 0;  // rows of x, which several items may read
    int64_t first_y = 0;  // rows of y, which are of one item
    int64_t n_rows = 0;
  };
  std::span<const Item> items;
  ObjectPlace x;  // [n_x_rows, n_in], dense
  int64_t n_x_rows = 0;
  DType x_type = DType::kF32;  // one that Residents::Multiplies with all matrices
  ObjectPlace y;               // [rows, n_out] F32, dense
  int64_t n_in = 0, n_out = 0;
};

// y[t] = the sum of weights[t][k] x[rows[t][k]], in the order of k; or y[t] grows by it.
struct WeightedRowsPlan {
  ObjectPlace x;  // [rows, n_dims] F32, dense
  int64_t n_x_rows = 0;
  std::span<const int64_t> rows;   // [n_rows, n_each]
  std::span<const float> weights;  // [n_rows, n_each]
  int64_t n_rows = 0;
  int64_t n_each = 0;
  int64_t n_dims = 0;
  ObjectPlace y;  // [n_rows, n_dims] F32, dense
  bool accumulate = false;
};

}  // namespace kvlathe

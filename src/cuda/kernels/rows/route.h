// Which experts the rows of a layer go to, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvlathe::cuda {

// What a block of threads has room for in shared memory.
inline constexpr int kMostRoutedExperts = 512;

// RouteRule::Score of machine/expert_plans.h.
enum class RouteScore : int { kSoftmax, kSigmoid, kSoftmaxOfChosen, kSparseMixer };

// RouteRule.
struct RouteNumbers {
  RouteScore score = RouteScore::kSoftmax;
  int n_used = 1;
  bool normalises = false;
  float min_sum = 0;
  bool adds_min_sum = false;
  float scale = 1;
  int n_groups = 1;
  int n_used_groups = 1;
  bool groups_sum_two = true;
  float mixer_jitter = 0;
};

// RoutePlan (machine/expert_plans.h) with addresses, and logits in place of rows.
struct RouteParams {
  RouteNumbers rule;
  int n_experts = 0;  // at most kMostRoutedExperts
  int n_rows = 0;
  const float* logits = nullptr;  // [n_rows, n_logits]
  int n_logits = 0;               // n_experts, and one more where there are gates
  const float* choice_bias = nullptr;
  int32_t* experts = nullptr;  // [n_rows, n_used]
  float* weights = nullptr;    // [n_rows, n_used]
  float* gates = nullptr;      // [n_rows]; null: there are none
};

// In double, in the order that rows alone decide: scores that differ in their last places are told
// apart as the CPU does.
void Route(cudaStream_t stream, const RouteParams& params);

}  // namespace kvlathe::cuda

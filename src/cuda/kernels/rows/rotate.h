// Queries and keys turn to their positions on a GPU (RotatePlan, machine/plans.h); what maps them
// to the basis of a cache are products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace kvlathe::cuda {

// HeadTurn without its maps, with addresses.
struct TurnedHead {
  const float* q = nullptr;
  const float* k = nullptr;
  void* turned_q = nullptr;
  void* turned_k = nullptr;
  const float* key_offset = nullptr;
  const float* turning_mean = nullptr;
  int64_t turned_q_stride = 0;
  int64_t turned_k_stride = 0;
  int turned_q_width = 0;
  int turned_q_place = 0;
};

// How many positions travel with a launch.
inline constexpr int kPositionsOfTurn = 256;

// The rest as in RotatePlan.
struct TurnParams {
  const int32_t* positions = nullptr;  // [n_tokens] in the memory of the device; null: these
  int32_t few_positions[kPositionsOfTurn];
  int n_tokens = 0;
  int gqa_group = 1;
  int head_dim = 0;
  int64_t stride = 0;
  const float *cos = nullptr, *sin = nullptr;
  const float *key_cos = nullptr, *key_sin = nullptr;
  const float* query_weights = nullptr;
  int rope_dim = 0;
  int first_unturned = 0;
  bool all_turn = true;  // first_unturned is RotatePlan::kAllTurn
  bool zeroes_first_query_only = false;
  int first_less_mean = 0;
  int first_less_offset = 0;
  int zeroed_channel = -1;
  DType out_type = DType::kF32;
};

// The same bits as the CPU's scalar kernels give.
void TurnRows(cudaStream_t stream, const TurnParams& params, std::span<const TurnedHead> heads);

// Values that are added to mapped keys: k += v, rounded to their type.
struct AddedRows {
  void* k = nullptr;  // [n_rows, width]
  const void* v = nullptr;
  int64_t v_stride = 0;
  int n_rows = 0;
  int width = 0;
};
void AddRows(cudaStream_t stream, DType type, std::span<const AddedRows> items);

}  // namespace kvlathe::cuda

// Writes new rows into the open blocks of a cache on a GPU, with the bytes that the CPU writes
// (AttendKernels::append, AppendCodedRows).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "format/rows/block_layout.h"

namespace kvlathe::cuda {

// BlockRows (machine/plans.h) with addresses.
struct AppendedRows {
  BlockShape shape;
  bool is_coded = false;
  int first_slot = 0;
  int n_rows = 0;
  std::byte* block = nullptr;
  const std::byte* k = nullptr;  // [n_rows, rank_k] row_type
  const std::byte* v = nullptr;  // [n_rows, rank_v] row_type
  int64_t k_stride = 0;          // elements
  int64_t v_stride = 0;
  // Becomes 1 where rows that are coded hold NaN or infinity; what is written then is undefined.
  int32_t* not_finite = nullptr;
};

// CopyPlan with addresses.
struct CopiedBytes {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t n_bytes = 0;
};

struct AppendKernelParams {
  const AppendedRows* rows = nullptr;   // on the device
  const CopiedBytes* copies = nullptr;  // on the device
  int n_rows = 0;                       // items of `rows`
  int n_copies = 0;
};

void AppendRows(cudaStream_t stream, const AppendKernelParams& params);

}  // namespace kvlathe::cuda

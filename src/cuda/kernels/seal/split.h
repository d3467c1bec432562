// Seals rows whose channels have bits of their own (format/split_bits) on a GPU: scales of tokens
// and codes, with the bytes that the CPU writes (cpu/kernels/seal/seal_split.cc).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/seal/sealed_head.h"
#include "format/split_bits/bit_split.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe::cuda {

inline constexpr int kMostUnitBits = 5;

// The tables of unit_codes.h, by bits less one.
struct UnitTables {
  float values[kMostUnitBits][kCodeWindows];      // that are read, by window
  float sought[kMostUnitBits][kCodeWindows];      // by window
  float centroids[kMostUnitBits][kCodeWindows];   // in ascending order
  float boundaries[kMostUnitBits][kCodeWindows];  // between them
};

struct SplitParams {
  SealKernelParams all;
  StoredUnit unit = StoredUnit::kChannel;
  // By segment of a split: kSplitBits, and 1 / UnitLoss of them in units of tokens.
  int bits[kSplitBits.size()] = {};
  float shares[kSplitBits.size()] = {};
  const float* inverses = nullptr;  // [256] on the device: 1 / ScaleOfByte
  UnitTables tables;
};

void SealSplit(cudaStream_t stream, const SplitParams& params);

}  // namespace kvlathe::cuda

// The shared memory of the kernel of decode.cuh.
#pragma once

#include "cuda/kernels/attend/decode.h"
#include "cuda/kernels/attend/decode_block.cuh"

namespace kvlathe::cuda {

// Offsets of shared memory, bytes.
struct DecodeShared {
  int q_stride, mean_stride;
  int q_f16, q_bf16, row_factor, lost, angles, weights, sinks, maxima, sums, warps;
  int probs, turned, o, warp_bytes;  // of a warp
  int n_bytes;
};
constexpr int Round128(int n) { return (n + 127) / 128 * 128; }
constexpr DecodeShared DecodeSharedOf(const DecodeParams& p) {
  DecodeShared at{};
  const int rows = p.max_rows, v_tiles = p.max_rank_v / 16;
  at.q_stride = RowStride(p.max_rank_k);
  at.mean_stride = RowStride(2 * p.max_pairs);
  int n = 0;
  at.q_f16 = n;
  n += Round128(rows * at.q_stride);
  at.q_bf16 = n;
  n += Round128(rows * at.q_stride);
  at.row_factor = n;
  n += Round128(rows * 4);
  at.lost = n;  // HeadJob::lost_keys times the query of a row
  n += Round128(rows * 4);
  at.angles = n;  // A of [entries][2 n_pairs]: what is F16, and what is left
  n += 2 * kBlockSize * 2 * 2 * p.max_pairs;
  at.weights = n;
  n += Round128(rows * 2 * p.max_pairs * 4);
  at.sinks = n;
  n += Round128(rows * p.max_sinks * 4);
  at.maxima = n;  // [n_warps][rows]; in the end what outputs of a warp count
  n += Round128(p.n_warps * rows * 4);
  at.sums = n;
  n += Round128(p.n_warps * rows * 4);
  at.warps = n;
  at.probs = 0;
  at.turned = Round128(rows * kProbStride);
  at.o = at.turned + (p.max_pairs > 0 ? Round128(2 * rows * at.mean_stride) : 0);
  at.warp_bytes = at.o + rows / 8 * v_tiles * 512;
  at.n_bytes = n + p.n_warps * at.warp_bytes;
  return at;
}

}  // namespace kvlathe::cuda

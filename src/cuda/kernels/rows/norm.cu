#include <algorithm>

#include "cuda/kernels/rows/norm.h"
#include "cuda/kernels/rows/row_access.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kNormThreads = 256;
constexpr int kNormsTogether = 4;  // of a launch
constexpr int kShortGroup = 512;   // groups up to here are a warp's

struct NormsParams {
  NormParams norms[kNormsTogether];
  int n_norms = 0;
  int n_groups = 0;   // of a row, in all norms
  int64_t n_all = 0;  // of all rows
};

// Sum over the block; `shared` has a float for each warp.
KVL_DEVICE float SumOfBlock(float x, float* shared) {
  const float of_warp = SumOfWarp(x);
  SyncBlock();
  if (Lane() == 0) shared[WarpIdx()] = of_warp;
  SyncBlock();
  float sum = 0;
  for (int i = 0; i < WarpCount(); ++i) sum += shared[i];
  return sum;
}

// A warp or a block normalises one group of a row.
template <bool kByWarp, int kWidth>
KVL_KERNEL(kNormThreads)
NormKernel(KVL_PARAMS(NormsParams) p) {
  auto* const shared = reinterpret_cast<float*>(Shared());
  const int64_t idx = kByWarp ? int64_t{BlockIdx()} * WarpCount() + WarpIdx() : BlockIdx();
  if (idx >= p.n_all) return;
  int group = static_cast<int>(idx % p.n_groups), norm_idx = 0;
  while (group >= p.norms[norm_idx].n_groups) group -= p.norms[norm_idx++].n_groups;
  const NormParams& norm = p.norms[norm_idx];
  const int64_t first = idx / p.n_groups * norm.stride + int64_t{group} * norm.n_dims;
  const float* const x = norm.x + first;
  const int n_dims = norm.n_dims;
  const int begin = (kByWarp ? Lane() : ThreadIdx()) * kWidth;
  const int step = (kByWarp ? kWarp : kNormThreads) * kWidth;
  const auto sum_of = [&](float sum) { return kByWarp ? SumOfWarp(sum) : SumOfBlock(sum, shared); };
  float mean = 0, scale = 1;
  if (norm.function == NormKind::kLayer) {
    float sum = 0;
    for (int i = begin; i < n_dims; i += step) {
      const Floats<kWidth> v = LoadFloats<kWidth>(x + i);
      for (int j = 0; j < kWidth; ++j) sum += v.x[j];
    }
    mean = sum_of(sum) / static_cast<float>(n_dims);
  }
  if (norm.function != NormKind::kNone) {
    float squares = 0;
    for (int i = begin; i < n_dims; i += step) {
      const Floats<kWidth> v = LoadFloats<kWidth>(x + i);
      for (int j = 0; j < kWidth; ++j) squares += (v.x[j] - mean) * (v.x[j] - mean);
    }
    const float variance = sum_of(squares) / static_cast<float>(n_dims);
    scale = 1.0f / sqrtf(variance + norm.eps);
  }
  const int64_t first_weight = norm.has_group_weights ? int64_t{group} * n_dims : 0;
  for (int i = begin; i < n_dims; i += step) {
    Floats<kWidth> y = LoadFloats<kWidth>(x + i);
    for (int j = 0; j < kWidth; ++j) y.x[j] = (y.x[j] - mean) * scale;
    if (norm.weight != nullptr) {
      const Floats<kWidth> weight = LoadFloats<kWidth>(norm.weight + first_weight + i);
      for (int j = 0; j < kWidth; ++j) y.x[j] *= weight.x[j];
    }
    if (norm.bias != nullptr) {
      const Floats<kWidth> bias = LoadFloats<kWidth>(norm.bias + i);
      for (int j = 0; j < kWidth; ++j) y.x[j] += bias.x[j];
    }
    StoreRounded(y, norm.out_type, norm.out, first + i);
    if (norm.added_to == nullptr) continue;
    Floats<kWidth> sum = LoadFloats<kWidth>(norm.added_to + first + i);
    for (int j = 0; j < kWidth; ++j) sum.x[j] += y.x[j];
    StoreFloats(sum, norm.added_to + first + i);
  }
}

bool IsInFours(const NormParams& norm) {
  return norm.n_dims % 4 == 0 && InFours(norm.x, norm.stride) && InFours(norm.weight, 0) &&
         InFours(norm.bias, 0) && InFours(norm.out_type, norm.out, 0) && InFours(norm.added_to, 0);
}

template <bool kByWarp>
void LaunchNorms(cudaStream_t stream, const NormsParams& params, bool in_fours) {
  const int at_once = kByWarp ? kNormThreads / kWarp : 1;
  const LaunchShape shape = {.n_blocks = static_cast<int>((params.n_all + at_once - 1) / at_once),
                             .n_threads = kNormThreads,
                             .shared_bytes = kNormThreads / kWarp * sizeof(float)};
  Launch(stream, in_fours ? NormKernel<kByWarp, 4> : NormKernel<kByWarp, 1>, shape, params);
}

}  // namespace

void Normalise(cudaStream_t stream, std::span<const NormParams> norms) {
  while (!norms.empty()) {
    NormsParams params;
    params.n_norms = static_cast<int>(std::min<size_t>(norms.size(), kNormsTogether));
    bool in_fours = true, is_short = true;
    for (int i = 0; i < params.n_norms; ++i) {
      params.norms[i] = norms[i];
      params.n_groups += norms[i].n_groups;
      in_fours = in_fours && IsInFours(norms[i]);
      is_short = is_short && norms[i].n_dims <= kShortGroup;
    }
    params.n_all = norms.front().n_rows * params.n_groups;
    is_short ? LaunchNorms<true>(stream, params, in_fours)
             : LaunchNorms<false>(stream, params, in_fours);
    norms = norms.subspan(params.n_norms);
  }
}

cudaError_t FindKernels() { return FindKernel(NormKernel<true, 4>); }

}  // namespace kvlathe::cuda

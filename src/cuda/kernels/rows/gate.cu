#include <cmath>

#include "cuda/kernels/rows/gate.h"
#include "cuda/kernels/rows/row_access.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kGateThreads = 256;

KVL_DEVICE float SiluOf(float x) { return x / (1.0f + expf(-x)); }
KVL_DEVICE float GeluOf(float x) {
  constexpr float kRootOfHalf = 0.70710678118654752f;
  return 0.5f * x * erfcf(-x * kRootOfHalf);  // erfc keeps the digits that 1 + erf loses
}
KVL_DEVICE float GeluTanhOf(float x) {
  constexpr float kRootOf2OverPi = 0.79788456080286536f;
  const float u = kRootOf2OverPi * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * u));
}
KVL_DEVICE float Relu2Of(float x) {
  const float positive = fmaxf(x, 0.0f);
  return positive * positive;
}
KVL_DEVICE float XieluOf(float x, const XieluParams& p) {
  const float linear = p.beta * x;
  if (x > 0) return p.positive * x * x + linear;
  return p.negative * (expm1f(fminf(x, p.eps)) - x) + linear;
}

// The largest gate of gpt-oss, and the slope of its sigmoid.
constexpr float kGateLimit = 7;
constexpr float kSigmoidSlope = 1.702f;

KVL_DEVICE float ClampedGateOf(float x) {
  const float gate = fminf(x, kGateLimit);
  return gate / (1.0f + expf(-kSigmoidSlope * gate));
}
// What a clamped gate is multiplied by.
KVL_DEVICE float ClampedUpOf(float x) { return fminf(fmaxf(x, -kGateLimit), kGateLimit) + 1; }

// Blocks x rows of kGateThreads * kWidth columns, blocks y.
template <GateFunction kFunction, int kWidth>
KVL_KERNEL(kGateThreads)
GateKernel(KVL_PARAMS(GateParams) p) {
  constexpr bool kIsClamped = kFunction == GateFunction::kClampedSwiglu;
  constexpr bool kHasGate =
      kFunction == GateFunction::kSwiglu || kFunction == GateFunction::kGegluTanh || kIsClamped;
  const int64_t column = (int64_t{BlockIdxY()} * kGateThreads + ThreadIdx()) * kWidth;
  if (column >= p.ffn_dim) return;
  const int64_t row = BlockIdx();
  const float* const x = p.x + row * (kHasGate ? 2 : 1) * p.ffn_dim + column;
  Floats<kWidth> y = LoadFloats<kWidth>(x);
  for (int j = 0; j < kWidth; ++j) {
    if constexpr (kFunction == GateFunction::kSwiglu) {
      y.x[j] = SiluOf(y.x[j]);
    } else if constexpr (kFunction == GateFunction::kGelu) {
      y.x[j] = GeluOf(y.x[j]);
    } else if constexpr (kFunction == GateFunction::kRelu2) {
      y.x[j] = Relu2Of(y.x[j]);
    } else if constexpr (kFunction == GateFunction::kXielu) {
      y.x[j] = XieluOf(y.x[j], p.xielu);
    } else if constexpr (kIsClamped) {
      y.x[j] = ClampedGateOf(y.x[j]);
    } else {
      y.x[j] = GeluTanhOf(y.x[j]);
    }
  }
  if constexpr (kHasGate) {
    const Floats<kWidth> up = LoadFloats<kWidth>(x + p.ffn_dim);
    for (int j = 0; j < kWidth; ++j) y.x[j] *= kIsClamped ? ClampedUpOf(up.x[j]) : up.x[j];
  }
  StoreRounded(y, p.out_type, p.out, row * p.ffn_dim + column);
}

template <GateFunction kFunction>
void LaunchGate(cudaStream_t stream, const GateParams& params) {
  const bool in_fours =
      InFours(params.x, params.ffn_dim) && InFours(params.out_type, params.out, params.ffn_dim);
  const int64_t of_block = kGateThreads * (in_fours ? 4 : 1);
  const LaunchShape shape = {
      .n_blocks = static_cast<int>(params.n_rows),
      .n_threads = kGateThreads,
      .n_blocks_y = static_cast<int>((params.ffn_dim + of_block - 1) / of_block)};
  Launch(stream, in_fours ? GateKernel<kFunction, 4> : GateKernel<kFunction, 1>, shape, params);
}

}  // namespace

void Gate(cudaStream_t stream, const GateParams& params) {
  switch (params.function) {
    case GateFunction::kSwiglu:
      return LaunchGate<GateFunction::kSwiglu>(stream, params);
    case GateFunction::kGegluTanh:
      return LaunchGate<GateFunction::kGegluTanh>(stream, params);
    case GateFunction::kGelu:
      return LaunchGate<GateFunction::kGelu>(stream, params);
    case GateFunction::kGeluTanh:
      return LaunchGate<GateFunction::kGeluTanh>(stream, params);
    case GateFunction::kRelu2:
      return LaunchGate<GateFunction::kRelu2>(stream, params);
    case GateFunction::kXielu:
      return LaunchGate<GateFunction::kXielu>(stream, params);
    case GateFunction::kClampedSwiglu:
      return LaunchGate<GateFunction::kClampedSwiglu>(stream, params);
  }
}

}  // namespace kvlathe::cuda

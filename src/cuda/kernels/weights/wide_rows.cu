// Compiled without contraction, so that values have the bits that two roundings give.
#include "cuda/kernels/rows/row_access.cuh"
#include "cuda/kernels/weights/block_reader.cuh"
#include "cuda/kernels/weights/wide_rows.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kWidenThreads = 128;
constexpr int kLanesOfStretch = 4;
constexpr int kInputsOfThread = kStretch / kLanesOfStretch;

// Writes the numbers from `first` on that are among n_in.
KVL_DEVICE void PutNumbers(const WideRowsParams& p, int64_t row, int first, const float (&x)[4]) {
  const int64_t to = row * p.out_stride + first;
  const auto end = reinterpret_cast<uintptr_t>(p.out) + to * SizeOf(p.out_type);
  if (first + 4 <= p.n_in && end % (4 * SizeOf(p.out_type)) == 0) {
    return StoreRounded(Floats<4>{{x[0], x[1], x[2], x[3]}}, p.out_type, p.out, to);
  }
  for (int j = 0; j < 4; ++j) {
    if (first + j < p.n_in) StoreRounded(Floats<1>{{x[j]}}, p.out_type, p.out, to + j);
  }
}

KVL_DEVICE float ValueOf(uint32_t code, const StretchFactors& factors, int half, bool has_min) {
  const float product = factors.scale[half] * FloatOfBf16(code & 0xffff);
  return has_min ? product - factors.min[half] : product;
}

// Blocks x rows, blocks y ranges of kWidenThreads * kInputsOfThread inputs. Four lanes have a
// stretch.
template <WeightType kType>
KVL_KERNEL(kWidenThreads)
WidenKernel(KVL_PARAMS(WideRowsParams) p) {
  const int64_t row = BlockIdx();
  const int thread = BlockIdxY() * kWidenThreads + ThreadIdx();
  const int stretch = thread / kLanesOfStretch, i = thread % kLanesOfStretch;
  if (stretch * kStretch >= p.n_in) return;
  const int64_t from = p.rows == nullptr ? row : p.rows[row];
  const std::byte* const w = p.w + from * p.w_row_bytes;
  if constexpr (HasBlocks(kType)) {
    using Reader = BlockReader<kType>;
    const std::byte* const block = w + int64_t{stretch / Reader::kStretches} * Reader::kBlockBytes;
    const int c = stretch % Reader::kStretches;
    uint32_t pairs[4];
    Reader::Codes(block, c, i, pairs);
    const StretchFactors factors = Reader::FactorsOf(block, c);
    for (int half = 0; half < 2; ++half) {
      float x[4];
      for (int j = 0; j < 4; ++j) {
        x[j] = ValueOf(pairs[2 * half + j % 2] >> (j / 2 * 16), factors, half, Reader::kHasMin);
      }
      PutNumbers(p, row, stretch * kStretch + 16 * half + 4 * i, x);
    }
  } else {
    for (int half = 0; half < 2; ++half) {
      const int first = stretch * kStretch + 16 * half + 4 * i;
      float x[4] = {};
      for (int j = 0; j < 4; ++j) {
        if (first + j >= p.n_in) continue;
        x[j] = LoadNumber(kType == WeightType::kBf16 ? DType::kBf16 : DType::kF32, w, first + j);
      }
      PutNumbers(p, row, first, x);
    }
  }
}

template <WeightType kType>
void LaunchWiden(cudaStream_t stream, const WideRowsParams& params) {
  constexpr int kOfBlock = kWidenThreads * kInputsOfThread;
  Launch(stream, WidenKernel<kType>,
         {.n_blocks = params.n_rows,
          .n_threads = kWidenThreads,
          .n_blocks_y = (params.n_in + kOfBlock - 1) / kOfBlock},
         params);
}

}  // namespace

void WidenRows(cudaStream_t stream, const WideRowsParams& params) {
  switch (params.type) {
    using enum WeightType;
    case kF32:
      return LaunchWiden<kF32>(stream, params);
    case kBf16:
      return LaunchWiden<kBf16>(stream, params);
    case kQ4_0:
      return LaunchWiden<kQ4_0>(stream, params);
    case kQ4_1:
      return LaunchWiden<kQ4_1>(stream, params);
    case kQ5_0:
      return LaunchWiden<kQ5_0>(stream, params);
    case kQ5_1:
      return LaunchWiden<kQ5_1>(stream, params);
    case kQ8_0:
      return LaunchWiden<kQ8_0>(stream, params);
    case kQ2_K:
      return LaunchWiden<kQ2_K>(stream, params);
    case kQ3_K:
      return LaunchWiden<kQ3_K>(stream, params);
    case kQ4_K:
      return LaunchWiden<kQ4_K>(stream, params);
    case kQ5_K:
      return LaunchWiden<kQ5_K>(stream, params);
    case kQ6_K:
      return LaunchWiden<kQ6_K>(stream, params);
    case kIq4Nl:
      return LaunchWiden<kIq4Nl>(stream, params);
    case kIq4Xs:
      return LaunchWiden<kIq4Xs>(stream, params);
    case kMxfp4:
      return LaunchWiden<kMxfp4>(stream, params);
  }
}

}  // namespace kvlathe::cuda

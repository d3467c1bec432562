#include <cmath>

#include "cuda/kernels/seal/append.h"
#include "cuda/simt/launch.h"
#include "format/split_bits/coded_rows.h"
#include "format/split_bits/split_bits_layout.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;

// --- Plain rows ---

// Element: uint16_t or uint32_t, whose bits move as they are.
template <typename Element>
struct alignas(2 * sizeof(Element)) ElementPair {
  Element x[2];
};

template <typename Element>
KVL_DEVICE void AppendPlain(const AppendedRows& rows) {
  const auto* const k = reinterpret_cast<const Element*>(rows.k);
  const auto* const v = reinterpret_cast<const Element*>(rows.v);
  auto* const keys = reinterpret_cast<Element*>(rows.block);
  Element* const values = keys + int64_t{kBlockSize} * rows.shape.rank_k;
  // Neighbouring threads write neighbouring tokens of a pair of channels.
  for (int i = ThreadIdx(); i < rows.n_rows * rows.shape.rank_k / 2; i += kThreads) {
    const int row = i % rows.n_rows, r = i / rows.n_rows * 2;
    const Element* const from = k + row * rows.k_stride + r;
    *reinterpret_cast<ElementPair<Element>*>(keys + KeyOffset(rows.first_slot + row, r)) = {
        from[0], from[1]};
  }
  for (int i = ThreadIdx(); i < rows.n_rows * rows.shape.rank_v; i += kThreads) {
    const int row = i / rows.shape.rank_v, r = i % rows.shape.rank_v;
    values[ValueOffset(rows.shape, rows.first_slot + row, r)] = v[row * rows.v_stride + r];
  }
}

// --- Coded rows ---

KVL_DEVICE float NumberOf(DType type, const std::byte* row, int r) {
  if (type == DType::kBf16) return FloatOfBf16(reinterpret_cast<const uint16_t*>(row)[r]);
  return reinterpret_cast<const float*>(row)[r];
}

// The byte of the least scale under which `most` is not beyond the last code, or 255.
KVL_DEVICE uint8_t ScaleThatReaches(float most) {
  constexpr float kLast = 127 * kUnitStep;
  const int32_t steps = std::bit_cast<int32_t>(most / kLast) - static_cast<int32_t>(kScaleBase);
  int byte = steps >> kScaleShift;
  byte = byte < 0 ? 0 : byte > 255 ? 255 : byte;
  if (byte > 0 && kLast * ScaleOfByte(static_cast<uint8_t>(byte - 1)) >= most) --byte;
  if (byte < 255 && kLast * ScaleOfByte(static_cast<uint8_t>(byte)) < most) ++byte;
  return static_cast<uint8_t>(byte);
}

KVL_DEVICE uint8_t StepCode(float x, float step_size) {
  float step = rintf(x / step_size);
  step = step < 127.0f ? step : 127.0f;
  step = step > -128.0f ? step : -128.0f;
  return static_cast<uint8_t>(static_cast<int>(step) + 128);
}

// A warp codes a row.
template <bool kIsKey>
KVL_DEVICE void AppendCodedRow(const AppendedRows& rows, int row) {
  const BlockShape& shape = rows.shape;
  const int rank = kIsKey ? shape.rank_k : shape.rank_v, token = rows.first_slot + row;
  const std::byte* const from =
      kIsKey ? rows.k + row * rows.k_stride * static_cast<int64_t>(SizeOf(shape.row_type))
             : rows.v + row * rows.v_stride * static_cast<int64_t>(SizeOf(shape.row_type));
  float most = 0;
  bool is_finite = true;
  for (int r = Lane(); r < rank; r += kWarp) {
    const float x = NumberOf(shape.row_type, from, r);
    is_finite = is_finite && x * 0 == 0;
    const float size = fabsf(x);
    most = size > most ? size : most;
  }
  most = MaxOfWarp(most);
  const bool all_finite = Ballot(!is_finite) == 0;
  const uint8_t byte = ScaleThatReaches(most);
  const float step_size = ScaleOfByte(byte) * kUnitStep;
  std::byte* const codes = kIsKey ? rows.block : rows.block + CodedKeyBytes(shape);
  for (int r = Lane(); r < rank; r += kWarp) {
    const int64_t at = kIsKey ? CodedKeyOffset(token, r) : CodedValueOffset(rank, token, r);
    codes[at] = static_cast<std::byte>(StepCode(NumberOf(shape.row_type, from, r), step_size));
  }
  if (Lane() != 0) return;
  rows.block[kIsKey ? CodedKeyScaleOffset(shape, token) : CodedValueScaleOffset(shape, token)] =
      static_cast<std::byte>(byte);
  if (!all_finite) AtomicMax(rows.not_finite, 1);
}

KVL_KERNEL(kThreads) AppendKernel(KVL_PARAMS(AppendKernelParams) p) {
  const AppendedRows& rows = p.rows[BlockIdx()];
  if (rows.is_coded) {
    for (int row = WarpIdx(); row < rows.n_rows; row += WarpCount()) {
      AppendCodedRow<true>(rows, row);
      if (!rows.shape.has_one_side) AppendCodedRow<false>(rows, row);
    }
  } else if (rows.shape.row_type == DType::kBf16) {
    AppendPlain<uint16_t>(rows);
  } else {
    AppendPlain<uint32_t>(rows);
  }
}

KVL_KERNEL(kThreads) CopyKernel(KVL_PARAMS(AppendKernelParams) p) {
  const CopiedBytes& copy = p.copies[BlockIdx()];
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(copy.from) | reinterpret_cast<uintptr_t>(copy.to) | copy.n_bytes;
  if (all % sizeof(Words4) == 0) {
    for (int64_t i = ThreadIdx(); i < copy.n_bytes / static_cast<int>(sizeof(Words4));
         i += kThreads) {
      reinterpret_cast<Words4*>(copy.to)[i] = reinterpret_cast<const Words4*>(copy.from)[i];
    }
    return;
  }
  for (int64_t i = ThreadIdx(); i < copy.n_bytes; i += kThreads) copy.to[i] = copy.from[i];
}

}  // namespace

void AppendRows(cudaStream_t stream, const AppendKernelParams& params) {
  Launch(stream, CopyKernel, {.n_blocks = params.n_copies, .n_threads = kThreads}, params);
  Launch(stream, AppendKernel, {.n_blocks = params.n_rows, .n_threads = kThreads}, params);
}

}  // namespace kvlathe::cuda

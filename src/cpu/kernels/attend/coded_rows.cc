#include "cpu/kernels/attend/coded_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "base/check.h"
#include "format/split_bits/split_bits_layout.h"
#include "format/split_bits/unit_codes.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

constexpr int kGroupBytes = 64;  // two lines of 32 codes
constexpr float kSignOfZero = 0x1p-20f;

// The byte of the least scale under which `most` is not beyond the last code, or 255.
uint8_t ScaleThatReaches(float most) {
  constexpr float kLast = 127 * kUnitStep;  // times a scale it is exact
  const int32_t steps = std::bit_cast<int32_t>(most / kLast) - int32_t{kScaleBase};
  int byte = std::clamp(steps >> kScaleShift, 0, 255);  // the scale at or below, but for rounding
  if (byte > 0 && kLast * ScaleOfByte(static_cast<uint8_t>(byte - 1)) >= most) --byte;
  if (byte < 255 && kLast * ScaleOfByte(static_cast<uint8_t>(byte)) < most) ++byte;
  return static_cast<uint8_t>(byte);
}

// Sets the codes of a row and their scale. False when a number is not finite.
bool EncodeRow(const float* row, std::span<uint8_t> codes, std::byte* scale_byte) {
  float sum = 0, most = 0;  // NaN once a number is not finite
  for (size_t i = 0; i < codes.size(); ++i) {
    sum += row[i] * 0;
    most = std::max(most, std::abs(row[i]));
  }
  const uint8_t byte = ScaleThatReaches(most);
  *scale_byte = std::byte{byte};
  const float step_size = ScaleOfByte(byte) * kUnitStep;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float step = std::nearbyint(row[i] / step_size);
    // In this order NaN is a code as well.
    codes[i] = static_cast<uint8_t>(std::max(-128.0f, std::min(127.0f, step)) + 128);
  }
  return sum == 0;
}

float ScaleAt(const std::byte* scales, int token) {
  return ScaleOfByte(static_cast<uint8_t>(scales[token]));
}

// Codes of a group are those of two lines, eight of either in turn. Bit kTokenBit of the place of a
// word in its line tells odd tokens. scale_of(line, word) is that of its token.
template <int kTokenBit, typename F>
void ExpandGroup(const std::byte* group, const F& scale_of, float* first, float* second) {
  for (int i = 0; i < kGroupBytes; ++i) {
    const int line = i / 8 % 2, word = i / 16 * 8 + i % 8;
    const float zero = (i >> kTokenBit & 1) == 0 ? kSignOfZero : -kSignOfZero;
    const float step = static_cast<float>(group[i]) - 128;
    (line == 0 ? first : second)[word] =
        scale_of(line, word) * (step == 0 ? zero : step * kUnitStep);
  }
}

}  // namespace

bool AppendCodedRows(const AppendParams& p) {
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  KVL_DCHECK(rank_k <= kMaxRowRank && rank_v <= kMaxRowRank);
  const int64_t element = SizeOf(p.shape.row_type);
  std::byte* const values = p.block + CodedKeyBytes(p.shape);
  std::array<float, kMaxRowRank> row;
  std::array<uint8_t, kMaxRowRank> codes;
  bool ok = true;
  for (int i = 0; i < p.n_rows; ++i) {
    const int token = p.first_slot + i;
    ConvertToFloat(p.shape.row_type, static_cast<const std::byte*>(p.k) + i * p.k_stride * element,
                   rank_k, row.data());
    ok = EncodeRow(row.data(), std::span(codes).first(rank_k),
                   p.block + CodedKeyScaleOffset(p.shape, token)) &&
         ok;
    for (int r = 0; r < rank_k; ++r) p.block[CodedKeyOffset(token, r)] = std::byte{codes[r]};
    if (p.shape.has_one_side) continue;
    ConvertToFloat(p.shape.row_type, static_cast<const std::byte*>(p.v) + i * p.v_stride * element,
                   rank_v, row.data());
    ok = EncodeRow(row.data(), std::span(codes).first(rank_v),
                   p.block + CodedValueScaleOffset(p.shape, token)) &&
         ok;
    for (int r = 0; r < rank_v; ++r)
      values[CodedValueOffset(rank_v, token, r)] = std::byte{codes[r]};
  }
  return ok;
}

void ExpandCodedKeys(const std::byte* keys, int rank, const std::byte* scales, float* to) {
  for (int line = 0; line < 2 * rank; line += 2) {  // 16 tokens each, of two channels
    const auto scale_of = [&](int second, int word) {
      return ScaleAt(scales, (line + second) % 4 * 16 + word / 2);
    };
    ExpandGroup<1>(keys + line / 2 * kGroupBytes, scale_of, to + line * 32, to + (line + 1) * 32);
  }
}

void ExpandCodedValues(const std::byte* values, int rank, const std::byte* scales, float* to) {
  const int n_lines = rank / 16;  // of a pair of tokens
  for (int pair = 0; pair < kBlockSize / 2; pair += 2) {
    const auto scale_of = [&](int second, int word) {
      return ScaleAt(scales, 2 * (pair + second) + word % 2);
    };
    for (int line = 0; line < n_lines; ++line) {
      float* first = to + (int64_t{pair} * n_lines + line) * 32;
      ExpandGroup<0>(values + (pair / 2 * n_lines + line) * kGroupBytes, scale_of, first,
                     first + n_lines * 32);
    }
  }
}

}  // namespace kvlathe

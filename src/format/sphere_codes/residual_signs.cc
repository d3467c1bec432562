#include "format/sphere_codes/residual_signs.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "format/codes/code_lines.h"
#include "format/sphere_codes/sphere_codes.h"

namespace kvlathe {
namespace {

constexpr int kPairWords = 2 * kBlockSize;  // of two channels of all tokens

using SignNumbers = std::array<int8_t, kTableCodes>;

constexpr SignNumbers MakeSignNumbers(int bits) {
  SignNumbers numbers{};
  for (int code = 0; code < kTableCodes; ++code) {
    numbers[code] = static_cast<int8_t>((code >> (bits - 1) & 1) == 0 ? 1 : -1);
  }
  return numbers;
}
alignas(16) constexpr SignNumbers kNumbers[] = {MakeSignNumbers(2), MakeSignNumbers(3),
                                                MakeSignNumbers(4)};

// Mixes n channels of all tokens, a power of two and at least 2, by the Hadamard matrix over
// sqrt(n). The members of a pair lie beside each other, and pairs of channels lie apart.
void MixBlock(int n, float* x) {
  const float unit = 1 / std::sqrt(static_cast<float>(n));
  for (int i = 0; i < n * kBlockSize; i += 2) {
    const float a = x[i] * unit, b = x[i + 1] * unit;
    x[i] = a + b;
    x[i + 1] = a - b;
  }
  for (int half = 1; half < n / 2; half *= 2) {
    for (int pair = 0; pair < n / 2; ++pair) {
      if ((pair & half) != 0) continue;
      float* const first = x + pair * kPairWords;
      float* const second = first + half * kPairWords;
      for (int i = 0; i < kPairWords; ++i) {
        const float a = first[i], b = second[i];
        first[i] = a + b;
        second[i] = a - b;
      }
    }
  }
}

void MixChannelsOfKeys(int rank, float* x) {
  for (int begin = 0; begin < rank;) {
    const int n = static_cast<int>(std::bit_floor(static_cast<unsigned>(rank - begin)));
    MixBlock(n, x + int64_t{begin} * kBlockSize);
    begin += n;
  }
}

// f(words of a pair of channels, sign of either).
template <typename F>
void ForEachPair(int rank, const F& f) {
  for (int pair = 0; pair < rank / 2; ++pair) {
    f(int64_t{pair} * kPairWords, SignOfChannel(SphereRotation::kOfResiduals, 2 * pair),
      SignOfChannel(SphereRotation::kOfResiduals, 2 * pair + 1));
  }
}

}  // namespace

const int8_t* NumbersOfSigns(int bits) { return kNumbers[bits - 2].data(); }

float ResidualUnit(int rank) { return static_cast<float>(std::sqrt(std::numbers::pi / 2 / rank)); }

void TurnResiduals(int rank, float* residuals) {
  ForEachPair(rank, [&](int64_t at, float even, float odd) {
    for (int i = 0; i < kPairWords; i += 2) {
      residuals[at + i] *= even;
      residuals[at + i + 1] *= odd;
    }
  });
  MixChannelsOfKeys(rank, residuals);
}

void AddResiduals(int rank, float* s, float* keys) {
  MixChannelsOfKeys(rank, s);
  ForEachPair(rank, [&](int64_t at, float even, float odd) {
    for (int i = 0; i < kPairWords; i += 2) {
      keys[at + i] += even * s[at + i];
      keys[at + i + 1] += odd * s[at + i + 1];
    }
  });
}

void WriteSigns(int bits, int rank, const float* turned, std::byte* codes) {
  constexpr int kWords = 32;  // of a line
  const int n_lines = LinesPerGroup(bits), top = LowBits(bits) - 1;
  for (int first = 0; first < 2 * rank; first += n_lines, codes += GroupBytes(bits)) {
    std::array<uint16_t, kWords> words;
    std::memcpy(words.data(), codes, sizeof(words));
    for (int line = 0; line < n_lines; ++line) {
      const float* const x = turned + int64_t{first + line} * kWords;
      uint32_t high = 0;
      for (int w = 0; w < kWords; ++w) {
        const uint32_t sign = x[w] < 0 ? 1 : 0;
        high |= sign << w;
        if (!HasHighBit(bits)) {
          words[w] |= static_cast<uint16_t>(sign << (LowBits(bits) * line + top));
        }
      }
      if (HasHighBit(bits)) std::memcpy(codes + sizeof(words) + 4 * line, &high, sizeof(high));
    }
    std::memcpy(codes, words.data(), sizeof(words));
  }
}

}  // namespace kvlathe

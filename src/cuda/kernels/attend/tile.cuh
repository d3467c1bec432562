// A block of a head as warps read it in shared memory, and what a warp does with 16 rows of it.
//
// K and V keep the order of a plain block (format/rows/block_layout.h), in words of two BF16: a
// word of K is a pair of channels of a token, and a word of V a pair of tokens of a channel. These
// are the registers of the second operand of m16n8k16, so nothing is transposed. Rows of words are
// padded so that the loads below meet each bank once.
//
// Tokens and channels have the places in products that make loads wide. Column n of the products
// of scores j = 0..3 of 32 tokens is token 4 s(n) + j with s(n) = n / 2 + n % 2 * 4, so a lane
// loads four tokens at once; columns n of two products of values are channels 2 n and 2 n + 1 of
// 16, so it loads two channels at once, and has four channels side by side in the end.
#pragma once

#include <cstdint>

#include "cuda/simt/simt.h"
#include "format/rows/block_layout.h"

namespace kvlathe::cuda {

constexpr int kKeyStride = kBlockSize + 4;  // words, from pair of channels to pair of channels
KVL_DEVICE constexpr int ValueStride(int rank_v) { return rank_v + 4; }  // from pair of tokens on
KVL_DEVICE constexpr int QueryStride(int rank) { return rank + 8; }      // BF16

constexpr int kRowsOfWarp = 16;
constexpr int kScoreTiles = kBlockSize / 8;
constexpr float kMinusInfinity = -__builtin_inff();

// The first tokens of a lane in the products of scores [4 half, 4 half + 4): those of product j and
// column `odd` of the lane's two are this plus j.
KVL_DEVICE int TokenOfLane(int half, int odd) {
  return 32 * half + 16 * odd + 4 * (simt::Lane() % 4);
}

// The scores of a warp's rows and all tokens of the tile. kSteps: how many of the steps over
// channels are unrolled, as far as registers reach.
template <int kSteps>
KVL_DEVICE void FindScores(const uint16_t* q, const uint32_t* k, int rank,
                           float (&s)[kScoreTiles][4]) {
  using namespace simt;
  const int lane = Lane(), i = lane % 4, g = lane / 4;
  const uint16_t* const rows =
      q + (lane % 8 + lane / 8 % 2 * 8) * QueryStride(rank) + lane / 16 * 8;
  const uint32_t* const words = k + i * kKeyStride + 4 * (g / 2 + g % 2 * 4);
#pragma unroll
  for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) s[t][c] = 0;
  }
#pragma unroll kSteps
  for (int r = 0; r < rank; r += 16) {
    uint32_t a[4];
    LoadMatrices<false>(a, rows + r);
    const uint32_t* const from = words + r / 2 * kKeyStride;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 low = *reinterpret_cast<const Words4*>(from + 32 * half);
      const Words4 high = *reinterpret_cast<const Words4*>(from + 4 * kKeyStride + 32 * half);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t b[2] = {low.x[j], high.x[j]};
        MmaBf16(s[4 * half + j], a, b);
      }
    }
  }
}

// Multiplies scores, or weights, with a number of each token.
KVL_DEVICE void ScaleByTokens(const float* of_tokens, float (&s)[kScoreTiles][4]) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int half = part / 2, odd = part % 2;
    const simt::Words4 four =
        *reinterpret_cast<const simt::Words4*>(of_tokens + TokenOfLane(half, odd));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float scale = std::bit_cast<float>(four.x[j]);
      s[4 * half + j][odd] *= scale;
      s[4 * half + j][odd + 2] *= scale;
    }
  }
}

// Which tokens of a tile a row sees: [begin, end).
struct SeenTokens {
  int begin, end;
};

// -infinity for the scores that rows g and g + 8 do not see.
KVL_DEVICE void HideUnseen(const SeenTokens (&seen)[2], float (&s)[kScoreTiles][4]) {
#pragma unroll
  for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int token = TokenOfLane(t / 4, c % 2) + t % 4;
      const SeenTokens& row = seen[c / 2];
      if (token < row.begin || token >= row.end) s[t][c] = kMinusInfinity;
    }
  }
}

// The partial results of a warp's rows, of which a lane has rows g and g + 8. Of each 16 channels
// it has four, from 4 i on: those of products 2 n and 2 n + 1 take turns.
template <int kChannels>
struct RowSums {
  float o[kChannels / 8][4];
  float max[2], sum[2];  // maxima are those of scores times log2(e)

  KVL_DEVICE void Clear() {
#pragma unroll
    for (int n = 0; n < kChannels / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[n][c] = 0;
    }
    max[0] = max[1] = kMinusInfinity;
    sum[0] = sum[1] = 0;
  }

  // Turns scores into weights under the new maxima. `scale` makes scores powers of 2.
  KVL_DEVICE void Weigh(float scale, float (&s)[kScoreTiles][4]) {
    using namespace simt;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float most = kMinusInfinity;
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float x = s[t][2 * row + c];
          most = x > most ? x : most;
        }
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const float other = ShuffleXor(most, step);
        most = other > most ? other : most;
      }
      most *= scale;
      most = most > max[row] ? most : max[row];
      const float finite = most == kMinusInfinity ? 0.0f : most;
      const float shrink = Exp2(max[row] - finite);
      max[row] = most;
      float added = 0;
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[t][2 * row + c];
          x = Exp2(x * scale - finite);
          added += x;
        }
      }
      sum[row] = sum[row] * shrink + added;  // of the lane's own tokens
#pragma unroll
      for (int n = 0; n < kChannels / 8; ++n) {
        o[n][2 * row] *= shrink;
        o[n][2 * row + 1] *= shrink;
      }
    }
  }

  // Adds values of the first `rank` channels from `v` on, whose rows of words are `stride` apart.
  KVL_DEVICE void AddValues(const float (&s)[kScoreTiles][4], const uint32_t* v, int stride,
                            int rank) {
    using namespace simt;
    const int i = Lane() % 4, g = Lane() / 4;
    const uint32_t* const words = v + 2 * i * stride + 2 * g;
    uint32_t weights[4][4];  // of 16 tokens each
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int half = step / 2, first = step % 2;  // pairs of tokens of a lane
      const float(&even)[4] = s[4 * half + 2 * first];
      const float(&odd)[4] = s[4 * half + 2 * first + 1];
      weights[step][0] = PackBf16(even[0], odd[0]);
      weights[step][1] = PackBf16(even[2], odd[2]);
      weights[step][2] = PackBf16(even[1], odd[1]);
      weights[step][3] = PackBf16(even[3], odd[3]);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t* const from = words + (step / 2 * 16 + step % 2) * stride;
#pragma unroll
      for (int n = 0; n < kChannels / 16; ++n) {
        if (16 * n >= rank) break;
        const Words2 low = *reinterpret_cast<const Words2*>(from + 16 * n);
        const Words2 high = *reinterpret_cast<const Words2*>(from + 8 * stride + 16 * n);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t b[2] = {low.x[j], high.x[j]};
          MmaBf16(o[2 * n + j], weights[step], b);
        }
      }
    }
  }

  // Makes `sum` that of all tokens.
  KVL_DEVICE void SumLanes() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int step = 1; step < 4; step *= 2) sum[row] += simt::ShuffleXor(sum[row], step);
    }
  }
};

}  // namespace kvlathe::cuda

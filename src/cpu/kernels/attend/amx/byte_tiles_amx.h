// ByteTiles by the policy of attend_amx_kernel.h, which has two more products:
// MultiplySignedByUnsigned<c, a, b>() and MultiplyUnsignedBySigned<c, a, b>() add the products of
// bytes of A and B to integers C, and HasBytes() says whether the machine has them.
//
// Quads of K are B tiles as they lie (16 quads of channels x 16 tokens), and so is a column of V
// (16 quads of tokens x 16 channels): all tokens of a block meet 16 channels in one product.
#pragma once

#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/byte_tiles.h"

namespace kvlathe {
namespace {

constexpr int kByteTileLanes = 16;  // tokens, or channels, of a tile of sums

template <typename Tiles>
void DotKeyTiles(const int8_t* queries, const uint8_t* quads, int n_channels, int32_t* sums) {
  constexpr int kTiles = kBlockSize / kByteTileLanes, kQuadBytes = 4 * kBlockSize;
  Unroll<kTiles>([&](auto c) { Tiles::template Zero<c.value>(); });
  for (int channel = 0; channel < n_channels; channel += kByteTileStep) {
    Tiles::template Load<4>(queries + channel, kMaxRowRank);
    const uint8_t* const step = quads + channel / 4 * kQuadBytes;
    Unroll<kTiles>([&](auto c) {
      constexpr int kB = 6 + c.value % 2;
      Tiles::template Load<kB>(step + 4 * kByteTileLanes * c.value, kQuadBytes);
      Tiles::template MultiplySignedByUnsigned<c.value, 4, kB>();
    });
  }
  Unroll<kTiles>([&](auto c) {
    Tiles::template Store<c.value>(sums + kByteTileLanes * c.value, 4 * kBlockSize);
  });
}

template <typename Tiles>
void DotValueTiles(const uint8_t* probs, const uint8_t* columns, int n_channels, int32_t* sums) {
  static_assert(kBlockSize == kByteTileStep);
  constexpr int kTiles = 4, kColumn = kByteTileLanes * kBlockSize;
  Tiles::template Load<4>(probs, kBlockSize);
  for (int first = 0; first < n_channels; first += kTiles * kByteTileLanes) {
    Unroll<kTiles>([&](auto c) {
      constexpr int kB = 6 + c.value % 2;
      const int channel = first + kByteTileLanes * c.value;
      if (channel >= n_channels) return;
      Tiles::template Zero<c.value>();
      Tiles::template Load<kB>(columns + channel / kByteTileLanes * kColumn, 4 * kByteTileLanes);
      Tiles::template MultiplyUnsignedBySigned<c.value, 4, kB>();
      Tiles::template Store<c.value>(sums + channel, 4 * kMaxRowRank);
    });
  }
}

template <typename Tiles>
constexpr ByteTiles kByteTilesOf = {
    .configure = [](int n_rows) { Tiles::Configure(n_rows); },
    .release = [] { Tiles::Release(); },
    .dot_keys = DotKeyTiles<Tiles>,
    .dot_values = DotValueTiles<Tiles>,
};

}  // namespace
}  // namespace kvlathe

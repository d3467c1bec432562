// The cache types q8_0 and q4_0 of llama.cpp (ggml): blocks of 32 channels of a token with one F16
// scale and no minimum. llama.cpp rounds x / d + 8.5 down where these round x / d + 8 to the
// nearest even code: they differ on ties only.
#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {
namespace {

constexpr int kChannels = 32;

PackedFormat SignedFormat(int bits) {
  const PackedSide side{
      .bits = bits, .sharing = ScaleSharing::kToken, .group = kChannels, .is_symmetric = true};
  return {.codec = UniformCodec{side, side}};
}

}  // namespace

PackedFormat Q8Format() { return SignedFormat(8); }
PackedFormat Q4Format() { return SignedFormat(4); }

}  // namespace kvlathe

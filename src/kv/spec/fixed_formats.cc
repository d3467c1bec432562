#include "kv/spec/fixed_formats.h"

namespace kvlathe {
namespace {

// A scale for each `group` channels of a token; 0: for all of a head.
PackedFormat SignedFormat(int bits, int group) {
  const PackedSide side{
      .bits = bits, .sharing = ScaleSharing::kToken, .group = group, .is_symmetric = true};
  return {.codec = UniformCodec{side, side}};
}

constexpr int kGgmlGroup = 32;

}  // namespace

PackedFormat Int8Format() { return SignedFormat(8, 0); }
PackedFormat Q8Format() { return SignedFormat(8, kGgmlGroup); }
PackedFormat Q4Format() { return SignedFormat(4, kGgmlGroup); }

}  // namespace kvlathe

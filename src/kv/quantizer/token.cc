#include "kv/quantizer/quantizer_methods.h"

namespace kvlathe {

PackedFormat FormatOf(const TokenOptions& options) {
  const auto side_of = [&](double clip) {
    return PackedSide{.bits = options.bits,
                      .sharing = ScaleSharing::kToken,
                      .group = options.group,
                      .clip = clip};
  };
  return {.codec = UniformCodec{side_of(options.key_clip), side_of(options.value_clip)}};
}

}  // namespace kvlathe

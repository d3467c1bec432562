#include "kernels/cpu/entry_scores.h"

#include "base/random.h"
#include "kernels/cpu/entry_scores_isa.h"

namespace kvlathe {

uint32_t QueryKey(const ScoreNoise& noise, int head, int position) {
  const uint64_t place =
      uint64_t{static_cast<uint32_t>(head)} << 32 | static_cast<uint32_t>(position);
  return static_cast<uint32_t>(MixBits(noise.key ^ MixBits(place)));
}

const EntryScoreKernels& GetEntryScoreKernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return kEntryScoreAvx512;
    default:
      return kEntryScoreScalar;
  }
}

}  // namespace kvlathe

#include "cpu/kernels/linear/blocks/block_panel.h"
#include "cpu/kernels/linear/blocks/block_values.h"
#include "cpu/kernels/linear/matrix_layout.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// Calls store(input, output of the 64, value).
template <typename F>
void ForValues(const BlockPanel& panel, const F& store) {
  const BlockLayout layout = LayoutOfBlocks(panel.type);
  CodedBlock values;
  float numbers[kLongBlock];
  for (int out = 0; out < kOutBlock; ++out) {
    const std::byte* group = panel.w + out / kGroupOuts * panel.w_stride;
    for (int64_t in = 0; in < panel.n_in; in += layout.block, group += layout.group_bytes()) {
      TakeBlock(layout, group, out % kGroupOuts, &values);
      BlockToFloats(layout, values, numbers);
      for (int i = 0; i < layout.block; ++i) store(in + i, out, numbers[i]);
    }
  }
}

}  // namespace

void WidenToBf16Scalar(const BlockPanel& panel, uint16_t* to) {
  ForValues(panel, [&](int64_t in, int out, float value) {
    to[(in / 2 * kOutBlock + out) * 2 + in % 2] = ToBf16(value).bits;
  });
}

void WidenToF32Scalar(const BlockPanel& panel, float* to) {
  ForValues(panel, [&](int64_t in, int out, float value) { to[in * kOutBlock + out] = value; });
}

}  // namespace kvlathe

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/kernels/linear/blocks/block_product.h"
#include "cpu/kernels/linear/blocks/block_values.h"

namespace kvlathe {
namespace {

// An output's weights as integers with the factors of their units.
struct OutputNumbers {
  std::vector<int8_t> numbers;       // [n_in]
  std::vector<UnitFactors> factors;  // [n_in / unit]
};

void ReadOutput(const BlockLayout& layout, const std::byte* groups, int out, int64_t n_in,
                OutputNumbers* to) {
  CodedBlock values;
  for (int64_t first = 0; first < n_in; first += layout.block, groups += layout.group_bytes()) {
    TakeBlock(layout, groups, out, &values);
    for (int i = 0; i < layout.block; ++i) {
      to->numbers[first + i] = static_cast<int8_t>(NumberOf(layout, values.codes[i]));
    }
    for (int u = 0; u < layout.block / layout.unit; ++u) {
      to->factors[first / layout.unit + u] = FactorsOf(layout, values, u);
    }
  }
}

float Product(const BlockLayout& layout, const OutputNumbers& w, const QuantizedRows& x) {
  const int units = kBlockIns / layout.unit;  // of a block of x
  float sum = 0;
  for (size_t u = 0; u < w.factors.size(); ++u) {
    const RowBlock& block = x.blocks[u / units];
    int dot = 0;
    for (size_t i = u * layout.unit; i < (u + 1) * layout.unit; ++i)
      dot += w.numbers[i] * x.codes[i];
    sum += static_cast<float>(dot) * block.scale * w.factors[u].scale;
    if (layout.has_min)
      sum += w.factors[u].min * (units == 1 ? block.minus_sum : block.minus_half_sums[u % 2]);
  }
  return sum;
}

void StoreValue(const LinearPart& part, int64_t row, int64_t out, float value) {
  if (part.bias != nullptr) value += part.bias[out];
  const int64_t at = row * part.y_stride + out;
  if (part.y_type == DType::kBf16) {
    static_cast<Bf16*>(part.y)[at] = ToBf16(value);
    return;
  }
  float* const y = static_cast<float*>(part.y) + at;
  *y = part.accumulate ? *y + value : value;
}

}  // namespace

void QuantizeRowScalar(DType x_type, const void* x, int64_t n_in, int8_t* codes, RowBlock* blocks) {
  const std::byte* from = static_cast<const std::byte*>(x);
  for (int64_t first = 0; first < n_in; first += kBlockIns, ++blocks) {
    float values[kBlockIns];
    ConvertToFloat(x_type, from + first * SizeOf(x_type), kBlockIns, values);
    float max = 0, poison = 0;
    for (const float v : values) {
      max = std::max(max, std::abs(v));
      poison += v - v;
    }
    const float scale = max / 127.0f + poison;
    const float inverse = max >= kSmallestBlockMax ? 127.0f / max : 0.0f;
    int sums[2] = {};
    for (int i = 0; i < kBlockIns; ++i) {
      const float scaled = values[i] * inverse;
      const int code = std::isfinite(scaled) ? static_cast<int>(std::nearbyint(scaled)) : -128;
      codes[first + i] = static_cast<int8_t>(code);
      sums[i / kMinUnit] += code;
    }
    *blocks = {.scale = scale,
               .minus_sum = -scale * static_cast<float>(sums[0] + sums[1]),
               .minus_half_sums = {-scale * static_cast<float>(sums[0]),
                                   -scale * static_cast<float>(sums[1])}};
  }
}

void MultiplyBlocksScalar(WeightType type, const LinearPart& part, const QuantizedRows& x) {
  const BlockLayout layout = LayoutOfBlocks(type);
  OutputNumbers w = {std::vector<int8_t>(part.n_in),
                     std::vector<UnitFactors>(part.n_in / layout.unit)};
  for (int64_t out = 0; out < part.n_out; ++out) {
    const std::byte* const groups =
        static_cast<const std::byte*>(part.w) + out / kGroupOuts * part.w_stride;
    ReadOutput(layout, groups, static_cast<int>(out % kGroupOuts), part.n_in, &w);
    for (int64_t row = 0; row < part.n_rows; ++row) {
      StoreValue(part, row, out, Product(layout, w, x.From(row)));
    }
  }
}

}  // namespace kvlathe

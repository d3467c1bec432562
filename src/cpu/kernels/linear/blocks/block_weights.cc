#include "cpu/kernels/linear/blocks/block_weights.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "cpu/kernels/linear/blocks/block_panel.h"
#include "cpu/kernels/linear/blocks/block_product.h"
#include "cpu/kernels/linear/blocks/block_values.h"
#include "cpu/kernels/linear/dense_weights.h"

namespace kvlathe {
namespace {

// Fewer rows are bound by reading the weights.
constexpr int64_t kFewRows = 32;
// From this many rows on a worker, AMX multiplies Bf16 so much faster than AVX-512 integers that
// weights are widened for it.
constexpr int64_t kAmxRows = 64;

class BlockWeightFormat : public WeightFormat {
 public:
  explicit BlockWeightFormat(WeightType type) : type_(type), layout_(LayoutOfBlocks(type)) {}

  bool Multiplies(DType) const override { return true; }
  bool TakesIntegers(DType x_type) const override { return x_type == DType::kBf16; }

  int64_t BytesFor(const MatrixSize& size) const override {
    return RoundUp(size.n_out, kOutBlock) / kGroupOuts * Stride(size);
  }

  // What is no block of this type is dealt with before it comes here
  // (model/stored/weight_reader.h).
  void Pack(const MatrixSize&, const SourceRows&, std::byte*) const override { KVL_CHECK(false); }

  void PackBlocks(const MatrixSize& size, const SourceBlocks& source, std::byte* w) const override {
    for (int64_t r = 0; r < source.n_rows; ++r) {
      const int64_t out = source.first_out + r;
      PackStoredRow(type_, source.rows + r * source.row_bytes, size.n_in / layout_.block,
                    static_cast<int>(out % kGroupOuts), w + out / kGroupOuts * Stride(size));
    }
  }

  void Unpack(const MatrixSize& size, const std::byte* w, int64_t out, float* row) const override {
    CodedBlock values;
    const std::byte* group = w + out / kGroupOuts * Stride(size);
    for (int64_t in = 0; in < size.n_in; in += layout_.block, group += layout_.group_bytes()) {
      TakeBlock(layout_, group, static_cast<int>(out % kGroupOuts), &values);
      BlockToFloats(layout_, values, row + in);
    }
  }

  void UnpackRows(const MatrixSize& size, const std::byte* w, int64_t first_out, int64_t n_rows,
                  float* rows) const override {
    static const Isa isa = SelectIsa().value_or(Isa::kScalar);
    std::vector<float> panel(kOutBlock * size.n_in);
    for (int64_t r = 0; r < n_rows;) {
      float* const to = rows + r * size.n_in;
      if ((first_out + r) % kOutBlock != 0 || n_rows - r < kOutBlock) {
        Unpack(size, w, first_out + r, to);
        ++r;
        continue;
      }
      const std::byte* const groups = w + (first_out + r) / kGroupOuts * Stride(size);
      Widen({type_, size.n_in, groups, Stride(size)}, isa, /*is_bf16=*/false,
            reinterpret_cast<std::byte*>(panel.data()));
      TransposePanel(panel.data(), size.n_in, to);
      r += kOutBlock;
    }
  }

  void PlacePart(const MatrixSize& size, const std::byte* w, int64_t first_out,
                 LinearPart* part) const override {
    part->w_stride = Stride(size);
    part->w = w + first_out / kGroupOuts * part->w_stride;
  }

  int64_t FewRows(Isa) const override { return kFewRows; }

  void Multiply(const LinearPart& part, const LinearWorker& worker) const override {
    const bool is_fast_amx =
        worker.isa == Isa::kAmx && !worker.is_deterministic && part.n_rows >= kAmxRows;
    if (part.integers == nullptr || is_fast_amx) return MultiplyNumbers(part, worker);
    switch (worker.isa) {
      case Isa::kScalar:
        return MultiplyBlocksScalar(type_, part, *part.integers);
      case Isa::kAvx2:
        return HasAvxVnni() ? MultiplyBlocksAvxVnni(type_, part, *part.integers)
                            : MultiplyBlocksAvx2(type_, part, *part.integers);
      case Isa::kAvx512Bf16:
      case Isa::kAmx:
        return MultiplyBlocksAvx512(type_, part, *part.integers);
    }
  }

 private:
  // Of 16 outputs.
  int64_t Stride(const MatrixSize& size) const {
    KVL_DCHECK(size.n_in % layout_.block == 0);
    return size.n_in / layout_.block * layout_.group_bytes();
  }

  // Rows as they are, with 64 outputs at a time.
  void MultiplyNumbers(const LinearPart& part, const LinearWorker& worker) const {
    const bool is_bf16 = part.x_type == DType::kBf16;
    const WeightFormat& dense = is_bf16 ? Bf16Weights() : F32Weights();
    const MatrixSize size = {kOutBlock, part.n_in};
    worker.scratch->resize(dense.BytesFor(size));
    std::byte* const numbers = worker.scratch->data();
    for (int64_t out = 0; out < part.n_out; out += kOutBlock) {
      const BlockPanel panel = {
          type_, part.n_in,
          static_cast<const std::byte*>(part.w) + out / kGroupOuts * part.w_stride, part.w_stride};
      Widen(panel, worker.isa, is_bf16, numbers);
      LinearPart of_panel = part;
      of_panel.n_out = std::min(kOutBlock, part.n_out - out);
      dense.PlacePart(size, numbers, 0, &of_panel);
      of_panel.bias = part.bias == nullptr ? nullptr : part.bias + out;
      of_panel.y = static_cast<std::byte*>(part.y) + out * SizeOf(part.y_type);
      dense.Multiply(of_panel, worker);
    }
  }

  // rows [kOutBlock, n_in] of panel [n_in, kOutBlock].
  static void TransposePanel(const float* panel, int64_t n_in, float* rows) {
    constexpr int64_t kTile = 16;  // inputs at a time: lines of both sides stay in L1
    for (int64_t begin = 0; begin < n_in; begin += kTile) {
      const int64_t end = std::min(begin + kTile, n_in);
      for (int64_t out = 0; out < kOutBlock; ++out) {
        for (int64_t in = begin; in < end; ++in)
          rows[out * n_in + in] = panel[in * kOutBlock + out];
      }
    }
  }

  static void Widen(const BlockPanel& panel, Isa isa, bool is_bf16, std::byte* to) {
    if (is_bf16) {
      auto* const numbers = reinterpret_cast<uint16_t*>(to);
      return isa == Isa::kScalar ? WidenToBf16Scalar(panel, numbers)
                                 : WidenToBf16Avx2(panel, numbers);
    }
    auto* const numbers = reinterpret_cast<float*>(to);
    isa == Isa::kScalar ? WidenToF32Scalar(panel, numbers) : WidenToF32Avx2(panel, numbers);
  }

  WeightType type_;
  BlockLayout layout_;
};

}  // namespace

const WeightFormat& BlockWeights(WeightType type) {
  constexpr int kFirst = static_cast<int>(WeightType::kQ4_0);
  constexpr int kCount = static_cast<int>(WeightType::kMxfp4) - kFirst + 1;
  static const auto formats = []<int... kIdx>(std::integer_sequence<int, kIdx...>) {
    return std::array{BlockWeightFormat(static_cast<WeightType>(kFirst + kIdx))...};
  }
  (std::make_integer_sequence<int, kCount>());
  return formats[static_cast<int>(type) - kFirst];
}

}  // namespace kvlathe

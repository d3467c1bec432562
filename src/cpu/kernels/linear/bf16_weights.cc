#include <algorithm>
#include <cstring>
#include <limits>

#include "base/units.h"
#include "cpu/kernels/linear/dense_weights.h"

namespace kvlathe {
namespace {

// From this many rows on a worker, oneDNN is faster than our own kernels. With AVX-512 dots both
// run at the rate of the dots from 20 rows on; oneDNN is the better by 2% at 64 rows. AMX products
// are several times faster, but at few rows reading the weights takes longer than the dots of 16
// rows.
constexpr int64_t kDnnlRowsAvx512 = 64;
constexpr int64_t kDnnlRowsAmx = 16;

// Inputs transposed at a time: one cache line of Bf16 per row of a block stays in L1.
constexpr int64_t kTileIn = 32;

uint32_t LoadPair(const uint16_t* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

// Row `row` of the source, elements [first_in, first_in + n), as Bf16 bits.
void ReadBf16(DType dtype, const std::byte* row, int64_t first_in, int64_t n, uint16_t* to) {
  const std::byte* from = row + first_in * SizeOf(dtype);
  if (dtype == DType::kBf16) {
    std::memcpy(to, from, n * sizeof(uint16_t));
    return;
  }
  float values[kTileIn];
  ConvertToFloat(dtype, from, n, values);
  for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(values[i]).bits;
}

// Rows of one block of 64 outputs, [first, first + n_rows) within it. `lines` is the block,
// [n_in_padded / 2][64] pairs.
void PackBlock(int64_t first, int64_t n_rows, int64_t n_in, DType dtype, const std::byte* rows,
               int64_t row_bytes, uint32_t* lines) {
  uint16_t tile[kOutBlock][kTileIn];
  for (int64_t in = 0; in < n_in; in += kTileIn) {
    const int64_t n = std::min(kTileIn, n_in - in);
    for (int64_t j = 0; j < n_rows; ++j) {
      if (n < kTileIn) std::fill(tile[j], tile[j] + kTileIn, 0);
      ReadBf16(dtype, rows + j * row_bytes, in, n, tile[j]);
    }
    uint32_t* line = lines + in / 2 * kOutBlock + first;
    for (int64_t pair = 0; pair < (n + 1) / 2; ++pair, line += kOutBlock) {
      for (int64_t j = 0; j < n_rows; ++j) line[j] = LoadPair(&tile[j][2 * pair]);
    }
  }
}

class Bf16WeightFormat : public WeightFormat {
 public:
  bool Multiplies(DType x_type) const override { return x_type == DType::kBf16; }

  int64_t BytesFor(const MatrixSize& size) const override {
    return RoundUp(size.n_out, kOutBlock) * PaddedIn(size) * SizeOf(DType::kBf16);
  }

  void Pack(const MatrixSize& size, const SourceRows& source, std::byte* w) const override {
    const std::byte* from = static_cast<const std::byte*>(source.rows);
    const int64_t row_bytes = source.row_stride * SizeOf(source.dtype);
    const int64_t end = source.first_out + source.n_rows;
    for (int64_t out = source.first_out; out < end;) {
      const int64_t first_of_block = out / kOutBlock * kOutBlock;
      const int64_t block_end = std::min(end, first_of_block + kOutBlock);
      PackBlock(out - first_of_block, block_end - out, size.n_in, source.dtype,
                from + (out - source.first_out) * row_bytes, row_bytes,
                reinterpret_cast<uint32_t*>(w) + first_of_block * PaddedIn(size) / 2);
      out = block_end;
    }
  }

  void Unpack(const MatrixSize& size, const std::byte* w, int64_t out, float* row) const override {
    const Bf16* block =
        reinterpret_cast<const Bf16*>(w) + out / kOutBlock * kOutBlock * PaddedIn(size);
    for (int64_t in = 0; in < size.n_in; ++in) {
      row[in] = ToFloat(block[(in / 2 * kOutBlock + out % kOutBlock) * 2 + in % 2]);
    }
  }

  void PlacePart(const MatrixSize& size, const std::byte* w, int64_t first_out,
                 LinearPart* part) const override {
    part->w_stride = PaddedIn(size);
    part->w = w + first_out * part->w_stride * SizeOf(DType::kBf16);
  }

  int64_t FewRows(Isa isa) const override { return std::min(kDnnlRowsAvx512, DnnlRows(isa)); }

  void Multiply(const LinearPart& part, const LinearWorker& worker) const override {
    if (worker.isa == Isa::kScalar) return MultiplyBf16Scalar(part);
    // oneDNN picks its blocking, and so the order of its sums, by the number of rows.
    const bool uses_dnnl = !worker.is_deterministic && part.n_rows >= DnnlRows(worker.isa);
    if (uses_dnnl && worker.dnnl->Run(part)) return;
    HasBf16Dots(worker.isa) ? MultiplyBf16Avx512(part) : MultiplyBf16Avx2(part);
  }

 private:
  static int64_t PaddedIn(const MatrixSize& size) { return RoundUp(size.n_in, kInBlock); }
  // oneDNN has only a reference for BF16 where the machine has no BF16 dots.
  static int64_t DnnlRows(Isa isa) {
    if (!HasBf16Dots(isa)) return std::numeric_limits<int64_t>::max();
    return isa == Isa::kAmx ? kDnnlRowsAmx : kDnnlRowsAvx512;
  }
};

}  // namespace

const WeightFormat& Bf16Weights() {
  static const Bf16WeightFormat format;
  return format;
}

}  // namespace kvlathe

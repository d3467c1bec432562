#include <algorithm>

#include "base/units.h"
#include "cpu/kernels/linear/dense_weights.h"

namespace kvlathe {
namespace {

// From this many rows on a worker, oneDNN is the faster. Zen 4, weights in L3, oneDNN with AVX-512:
// our kernels take half its time at one row, the same at 32 rows, four thirds of it at 256.
constexpr int64_t kF32DnnlRows = 32;
constexpr int64_t kFewRowsScalar = 64;

constexpr int64_t kF32OutPad = 16;
// Inputs and outputs transposed at a time.
constexpr int64_t kF32TileIn = 32;
constexpr int64_t kF32TileOut = 64;

class F32WeightFormat : public WeightFormat {
 public:
  bool Multiplies(DType x_type) const override { return x_type == DType::kF32; }

  int64_t BytesFor(const MatrixSize& size) const override {
    return PaddedOut(size) * size.n_in * SizeOf(DType::kF32);
  }

  void Pack(const MatrixSize& size, const SourceRows& source, std::byte* w) const override {
    const int64_t element_bytes = SizeOf(source.dtype);
    const int64_t row_bytes = source.row_stride * element_bytes;
    const int64_t w_stride = PaddedOut(size);
    float tile[kF32TileOut][kF32TileIn];
    for (int64_t done = 0; done < source.n_rows; done += kF32TileOut) {
      const int64_t n_rows = std::min(kF32TileOut, source.n_rows - done);
      const std::byte* rows = static_cast<const std::byte*>(source.rows) + done * row_bytes;
      for (int64_t in = 0; in < size.n_in; in += kF32TileIn) {
        const int64_t n = std::min(kF32TileIn, size.n_in - in);
        for (int64_t j = 0; j < n_rows; ++j) {
          ConvertToFloat(source.dtype, rows + j * row_bytes + in * element_bytes, n, tile[j]);
        }
        for (int64_t i = 0; i < n; ++i) {
          float* line = reinterpret_cast<float*>(w) + (in + i) * w_stride + source.first_out + done;
          for (int64_t j = 0; j < n_rows; ++j) line[j] = tile[j][i];
        }
      }
    }
  }

  void Unpack(const MatrixSize& size, const std::byte* w, int64_t out, float* row) const override {
    const float* column = reinterpret_cast<const float*>(w) + out;
    for (int64_t in = 0; in < size.n_in; ++in) row[in] = column[in * PaddedOut(size)];
  }

  void PlacePart(const MatrixSize& size, const std::byte* w, int64_t first_out,
                 LinearPart* part) const override {
    part->w_stride = PaddedOut(size);
    part->w = w + first_out * SizeOf(DType::kF32);
  }

  int64_t FewRows(Isa isa) const override {
    return isa == Isa::kScalar ? kFewRowsScalar : kF32DnnlRows;
  }

  void Multiply(const LinearPart& part, const LinearWorker& worker) const override {
    if (worker.isa == Isa::kScalar) return MultiplyF32Scalar(part);
    const bool uses_dnnl = !worker.is_deterministic && part.n_rows >= kF32DnnlRows;
    if (uses_dnnl && worker.dnnl->Run(part)) return;
    MultiplyF32Avx2(part);
  }

 private:
  static int64_t PaddedOut(const MatrixSize& size) { return RoundUp(size.n_out, kF32OutPad); }
};

}  // namespace

const WeightFormat& F32Weights() {
  static const F32WeightFormat format;
  return format;
}

}  // namespace kvlathe

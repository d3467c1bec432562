// How one type of weights lies in the memory of the CPU and how rows are multiplied with it. A new
// type is a class of this kind and a line of weight_formats.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/cpu_features.h"
#include "cpu/kernels/linear/linear_dnnl.h"
#include "cpu/kernels/linear/linear_part.h"
#include "machine/weight_type.h"
#include "tensor/dtype.h"

namespace kvlathe {

// W [n_out, n_in].
struct MatrixSize {
  int64_t n_out = 0;
  int64_t n_in = 0;
};

// Rows [first_out, first_out + n_rows) of W, row-major numbers of dtype, row_stride elements apart.
struct SourceRows {
  int64_t first_out = 0;
  int64_t n_rows = 0;
  DType dtype = DType::kF32;
  const void* rows = nullptr;
  int64_t row_stride = 0;
};

// The same of a type with blocks: rows of whole blocks as ggml stores them, row_bytes apart.
struct SourceBlocks {
  int64_t first_out = 0;
  int64_t n_rows = 0;
  const std::byte* rows = nullptr;
  int64_t row_bytes = 0;
};

// The worker that computes a part of a product.
struct LinearWorker {
  Isa isa = Isa::kScalar;
  bool is_deterministic = false;              // every row gets the bits that it has alone
  DnnlLinear* dnnl = nullptr;                 // its own; null with Isa::kScalar
  std::vector<std::byte>* scratch = nullptr;  // its own, of any size
};

class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  // Whether rows of that type are multiplied with W.
  virtual bool Multiplies(DType x_type) const = 0;
  // Whether rows of that type may come as integers (LinearPart::integers); W's inputs are a
  // multiple of 32 then.
  virtual bool TakesIntegers(DType) const { return false; }
  virtual int64_t BytesFor(const MatrixSize& size) const = 0;
  // Writes rows into W, which begins as zeros: in any order, from different threads where the rows
  // share no group of kOutBlock.
  virtual void Pack(const MatrixSize& size, const SourceRows& source, std::byte* w) const = 0;
  // The same of rows in blocks of W's own type, which must have some.
  virtual void PackBlocks(const MatrixSize&, const SourceBlocks&, std::byte*) const {
    KVL_CHECK(false);
  }
  // Row `out` of W as float [n_in].
  virtual void Unpack(const MatrixSize& size, const std::byte* w, int64_t out,
                      float* row) const = 0;
  // Rows [first_out, first_out + n_rows) of W as float [n_rows, n_in].
  virtual void UnpackRows(const MatrixSize& size, const std::byte* w, int64_t first_out,
                          int64_t n_rows, float* rows) const {
    for (int64_t r = 0; r < n_rows; ++r) Unpack(size, w, first_out + r, rows + r * size.n_in);
  }
  // Lets a part begin with output first_out, a multiple of kOutBlock: sets w and w_stride.
  virtual void PlacePart(const MatrixSize& size, const std::byte* w, int64_t first_out,
                         LinearPart* part) const = 0;
  // Products of fewer rows than this are bound by reading W.
  virtual int64_t FewRows(Isa isa) const = 0;
  virtual void Multiply(const LinearPart& part, const LinearWorker& worker) const = 0;
};

const WeightFormat& FormatOf(WeightType type);

}  // namespace kvlathe

// Weights come from a source: a Hugging Face directory, a GGUF file, or random numbers in a real
// shape.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "io/safetensors/safetensors.h"
#include "tensor/buffer.h"

namespace kvlathe {

// A tensor as its file stores it, row-major: numbers of a dtype, or blocks of a type of ggml whose
// values share scales.
struct StoredTensor {
  DType dtype = DType::kF32;       // without blocks
  std::optional<GgmlType> blocks;  // rows are whole blocks
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t n_bytes = 0;

  // Elements [first, first + n) as floats; of blocks: whole ones.
  void Read(int64_t first, int64_t n, float* to) const;
  // Whether elements [first, first + n) are, of blocks: whole ones.
  bool IsFinite(int64_t first, int64_t n) const;
  int64_t n_elements() const;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool Has(const std::string& name) const = 0;
  // The blocks that a tensor is stored in; none for plain numbers.
  virtual std::optional<GgmlType> BlocksOf(const std::string&) const { return std::nullopt; }
  // The tensor, or an error that names it. The data live until Done is called with it; the source
  // is read by one thread.
  virtual StatusOr<StoredTensor> Get(const std::string& name,
                                     const std::vector<int64_t>& shape) = 0;
  // Number `idx` of the shape.front() tensors that one tensor of this shape holds, as Get; the
  // error names the whole.
  virtual StatusOr<StoredTensor> GetPart(const std::string& name, const std::vector<int64_t>& shape,
                                         int64_t idx);
  virtual void Done(const StoredTensor& tensor) = 0;
  // Whatever was read is no longer needed; more may be read later.
  virtual void DoneWithAll() {}
  // Whether rows may be read from the source for as long as it lives (a mapping) without Done.
  virtual bool is_mapped() const = 0;
};

std::unique_ptr<TensorSource> MakeFileSource(SafetensorsReader reader);

// Tensors by the names that GGUF gives them (WeightLayout::kGguf).
std::unique_ptr<TensorSource> MakeGgufSource(std::shared_ptr<const GgufFile> file);

// BF16 numbers with standard deviation 0.02, a function of (seed, tensor name, index) alone: speed
// measurements on shapes whose weights are not at hand.
std::unique_ptr<TensorSource> MakeRandomSource(uint64_t seed);

}  // namespace kvlathe

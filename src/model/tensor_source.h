// Where weights come from: a Hugging Face directory, or random numbers in a real shape.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/safetensors.h"
#include "tensor/buffer.h"

namespace kvlathe {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool Has(const std::string& name) const = 0;
  // The tensor, or an error that names it. The view lives until Done is called with it; the source
  // is read by one thread.
  virtual StatusOr<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) = 0;
  virtual void Done(const TensorView& tensor) = 0;
  // Whether rows may be read from the source for as long as it lives (a mapping) without Done.
  virtual bool is_mapped() const = 0;
};

std::unique_ptr<TensorSource> MakeFileSource(SafetensorsReader reader);

// BF16 numbers with standard deviation 0.02, a function of (seed, tensor name, index) alone: speed
// measurements on shapes whose weights are not at hand.
std::unique_ptr<TensorSource> MakeRandomSource(uint64_t seed);

}  // namespace kvlathe

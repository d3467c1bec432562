// Weights of four bits as gpt-oss is published: tensors of bytes with blocks of 32 numbers and
// their scales apart (https://huggingface.co/openai/gpt-oss-20b).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/safetensors/safetensors.h"
#include "tensor/buffer.h"

namespace kvlathe {

inline constexpr int64_t kMxfp4Values = 32;  // of a block

// Two tensors that are one of numbers: NAME_blocks [.., n / 32, 16] and NAME_scales [.., n / 32].
struct Mxfp4Tensor {
  const ByteTensorView* blocks = nullptr;
  const ByteTensorView* scales = nullptr;
};
// Without blocks where there is no such tensor.
Mxfp4Tensor FindMxfp4(const SafetensorsReader& reader, const std::string& name);

// Number `idx` of the shape.front() tensors that the tensor holds, in blocks of ggml's MXFP4.
// kDataLoss, with the found and the wanted shape; `name` is that of the error.
StatusOr<Buffer> ReadMxfp4(const Mxfp4Tensor& tensor, const std::string& name,
                           const std::vector<int64_t>& shape, int64_t idx);

}  // namespace kvlathe

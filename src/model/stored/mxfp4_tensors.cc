#include "model/stored/mxfp4_tensors.h"

#include "io/safetensors/safetensors_header.h"

namespace kvlathe {
namespace {

constexpr int kStoredBytes = kMxfp4Values / 2;  // of a block without its scale
constexpr int kBlockBytes = kStoredBytes + 1;   // of one of ggml
constexpr int kHalfBytes = kStoredBytes / 2;

// ggml has number i beside number i + 16 in a byte, and the file number 2 i beside 2 i + 1.
void ReorderBlock(const uint8_t* from, uint8_t scale, uint8_t* to) {
  *to++ = scale;
  for (int i = 0; i < kHalfBytes; ++i) {
    const uint8_t low = from[i], high = from[kHalfBytes + i];
    to[2 * i] = static_cast<uint8_t>((low & 0x0f) | (high & 0x0f) << 4);
    to[2 * i + 1] = static_cast<uint8_t>(low >> 4 | (high & 0xf0));
  }
}

Status CheckShape(const ByteTensorView& view, const std::string& name,
                  const std::vector<int64_t>& wanted) {
  if (view.shape == wanted) return OkStatus();
  return Error(StatusCode::kDataLoss, "tensor '{}' has shape {}, expected {}", name,
               ShapeToString(view.shape), ShapeToString(wanted));
}

}  // namespace

Mxfp4Tensor FindMxfp4(const SafetensorsReader& reader, const std::string& name) {
  return {reader.FindBytes(name + "_blocks"), reader.FindBytes(name + "_scales")};
}

StatusOr<Buffer> ReadMxfp4(const Mxfp4Tensor& tensor, const std::string& name,
                           const std::vector<int64_t>& shape, int64_t idx) {
  if (tensor.scales == nullptr) {
    return Error(StatusCode::kDataLoss, "tensor '{0}_scales' is missing beside '{0}_blocks'", name);
  }
  if (shape.back() % kMxfp4Values != 0) {
    return Error(StatusCode::kDataLoss,
                 "tensor '{}_blocks': rows of {} numbers are no whole blocks of {}", name,
                 shape.back(), kMxfp4Values);
  }
  std::vector<int64_t> wanted = shape;
  wanted.back() /= kMxfp4Values;
  KVL_RETURN_IF_ERROR(CheckShape(*tensor.scales, name + "_scales", wanted));
  wanted.push_back(kStoredBytes);
  KVL_RETURN_IF_ERROR(CheckShape(*tensor.blocks, name + "_blocks", wanted));
  const int64_t n_blocks = tensor.scales->n_bytes / shape.front();
  KVL_ASSIGN_OR_RETURN(Buffer buffer,
                       Buffer::Allocate(n_blocks * kBlockBytes, "weights of four bits"));
  const auto* const blocks = reinterpret_cast<const uint8_t*>(tensor.blocks->data);
  const auto* const scales = reinterpret_cast<const uint8_t*>(tensor.scales->data);
  auto* const to = buffer.as<uint8_t>();
  for (int64_t b = 0; b < n_blocks; ++b) {
    const int64_t from = idx * n_blocks + b;
    ReorderBlock(blocks + from * kStoredBytes, scales[from], to + b * kBlockBytes);
  }
  return buffer;
}

}  // namespace kvlathe

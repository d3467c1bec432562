#include "io/safetensors/safetensors_checksum.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "base/crc32c.h"

namespace kvlathe {
namespace {

constexpr std::string_view kKey = "crc32c";

class Checksum {
 public:
  // Behind its length, so that ("ab", "c") and ("a", "bc") differ.
  void AddText(std::string_view text) {
    AddNumber(std::ssize(text));
    AddBytes(std::as_bytes(std::span(text)));
  }
  void AddNumber(int64_t number) { AddBytes(std::as_bytes(std::span(&number, 1))); }
  void AddBytes(std::span<const std::byte> bytes) { crc_ = ExtendCrc32c(crc_, bytes); }
  void AddTensor(std::string_view name, const TensorView& tensor) {
    AddText(name);
    AddText(DTypeName(tensor.dtype));
    for (const int64_t extent : tensor.shape) AddNumber(extent);
    AddBytes({tensor.data, static_cast<size_t>(tensor.n_bytes)});
  }
  std::string Digits() const { return fmt::format("{:08x}", crc_); }

 private:
  uint32_t crc_ = 0;
};

// Of maps in the order of their keys.
template <typename Metadata, typename Tensors>
std::string ChecksumOf(const Metadata& metadata, const Tensors& tensors) {
  Checksum checksum;
  for (const auto& [key, value] : metadata) {
    if (key == kKey) continue;
    checksum.AddText(key);
    checksum.AddText(value);
  }
  for (const auto& [name, tensor] : tensors) checksum.AddTensor(name, tensor);
  return checksum.Digits();
}

}  // namespace

std::map<std::string, std::string> WithChecksum(const std::vector<TensorToWrite>& tensors,
                                                std::map<std::string, std::string> metadata) {
  std::map<std::string, TensorView> views;
  for (const TensorToWrite& tensor : tensors) {
    int64_t n_bytes = SizeOf(tensor.dtype);
    for (const int64_t extent : tensor.shape) n_bytes *= extent;
    views[tensor.name] = {tensor.dtype, tensor.shape, static_cast<const std::byte*>(tensor.data),
                          n_bytes};
  }
  metadata[std::string(kKey)] = ChecksumOf(metadata, views);
  return metadata;
}

bool HasRightChecksum(const SafetensorsReader& file) {
  const auto entry = file.metadata().find(kKey);
  return entry != file.metadata().end() &&
         entry->second == ChecksumOf(file.metadata(), file.tensors());
}

}  // namespace kvlathe

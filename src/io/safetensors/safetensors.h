// Hugging Face's safetensors are read by memory-mapping (one file, or shards with an index), and
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data =
      nullptr;  // row-major, aligned to the element, as long as the reader lives
  int64_t n_bytes = 0;

  int64_t n_elements() const { return n_bytes / SizeOf(dtype); }
};

struct ByteTensorView {
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // row-major, as long as the reader lives
  int64_t n_bytes = 0;
};

// A damaged file does not open: kDataLoss, naming the file and the tensor. Tensors whose dtype is
// none of DType's are listed by the format but not by this reader: Find and tensors() leave them
// out, Get names their dtype.
class SafetensorsReader {
 public:
  // One .safetensors file.
  static StatusOr<SafetensorsReader> OpenFile(const std::string& path);
  // A model directory: model.safetensors.index.json with its shards, or model.safetensors, or the
  // only *.safetensors in it (basis.safetensors and dms.safetensors do not count). With an index,
  // the tensors are those it lists, and each must be in the shard it names; shards must be plain
  // file names.
  static StatusOr<SafetensorsReader> OpenModel(const std::string& directory);

  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();

  // Null if there is no such tensor.
  const TensorView* Find(std::string_view name) const;
  // The tensor with exactly this shape, or an error that names the file and the tensor: kNotFound,
  // kUnimplemented for its dtype, kDataLoss with the found and the wanted shape.
  StatusOr<const TensorView*> Get(std::string_view name, const std::vector<int64_t>& shape) const;
  const std::map<std::string, TensorView, std::less<>>& tensors() const;
  // A tensor of dtype U8, in which files have weights of few bits; null if there is no such tensor.
  const ByteTensorView* FindBytes(std::string_view name) const;
  // The metadata of the file, or of all shards together, where the first shard that has a key
  // decides.
  const std::map<std::string, std::string, std::less<>>& metadata() const;
  // Tells the system that a tensor's pages are no longer needed (they can be read again).
  void ReleasePages(const TensorView& tensor) const;
  void ReleasePages(const std::byte* data, int64_t n_bytes) const;
  // The path that was opened, of the file or of the directory.
  const std::string& path() const;

 private:
  struct State;
  explicit SafetensorsReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

// Writes to a temporary file beside `path`, syncs, and renames: a failure (a full disk, no
// permission) leaves what was there before. The data stands in the order given, without padding, so
// put tensors of 4-byte elements first: a reader must copy one that is not aligned.
Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata);

}  // namespace kvlathe

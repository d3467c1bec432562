// A GgufWriter makes a GGUF file (version 3), tensor by tensor, so that no more than a piece of one
// has to be in memory:
//
//   GgufWriter writer;
//   writer.CopyMetadata(file);
//   writer.Set("general.file_type", int64_t{7});
//   writer.AddTensor("output.weight", GgmlType::kQ8_0, {32000, 2048});  // each of them
//   KVL_RETURN_IF_ERROR(writer.Begin(path));
//   KVL_RETURN_IF_ERROR(writer.Append(bytes));  // of all tensors, in their order
//   KVL_RETURN_IF_ERROR(writer.Commit());
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "io/atomic_file.h"
#include "io/gguf/ggml_types.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_header.h"

namespace kvlathe {

class GgufWriter {
 public:
  // Every key of a file with its value as it is stored, and so its alignment too. What says that
  // the file is one part of several is left out.
  void CopyMetadata(const GgufFile& file);
  // Sets a key, in place of a value that it has. Numbers, and those of arrays, are stored as
  // `number_type`, by default uint32 or float32; texts and bools as they are.
  void Set(std::string_view key, const GgufValue& value,
           std::optional<GgufValueType> number_type = std::nullopt);

  // `shape` is row-major, rows of whole blocks. Names must differ.
  void AddTensor(std::string_view name, GgmlType type, std::vector<int64_t> shape);

  // Writes what stands before the data. The file has its name only after Commit: until then, and
  // when a write fails (a full disk), what stood at `path` stays as it was.
  Status Begin(const std::string& path);
  // The next bytes of the tensors, in the order of AddTensor: a whole tensor or a piece of one.
  Status Append(std::span<const std::byte> bytes);
  // After the last byte of the last tensor.
  Status Commit();

  // Of the whole file, after Begin.
  int64_t n_bytes() const { return n_bytes_; }

 private:
  struct Tensor {
    std::string name;
    GgmlType type;
    std::vector<int64_t> shape;
    int64_t n_bytes;
  };

  std::string Header() const;
  int64_t Padding(int64_t n_bytes) const {
    return (alignment_ - n_bytes % alignment_) % alignment_;
  }
  Status WriteZeros(int64_t n_bytes);

  int64_t alignment_ = kDefaultGgufAlignment;
  std::map<std::string, std::string, std::less<>> values_;  // the number of a type, then the value
  std::vector<Tensor> tensors_;
  std::optional<AtomicFile> file_;
  int64_t n_bytes_ = 0;
  size_t tensor_idx_ = 0;   // that the next bytes belong to
  int64_t n_appended_ = 0;  // bytes of that tensor
};

}  // namespace kvlathe

// GGUF is the file format of llama.cpp: metadata and tensors in one file, memory-mapped
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Versions 2 and 3, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "io/gguf/ggml_types.h"

namespace kvlathe {

// A value of the metadata. Integers of every width and sign are int64_t and floats are double; a
// bool in an array is the integer 0 or 1. Texts are views into the mapped file.
using GgufValue = std::variant<bool, int64_t, double, std::string_view, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string_view>>;

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;       // row-major, the fastest dimension last (the file has it first)
  const std::byte* data = nullptr;  // rows of whole blocks, as long as the file lives
  int64_t n_bytes = 0;

  int64_t n_elements() const;
};

// Whether the file begins as GGUF files do.
bool LooksLikeGguf(const std::string& path);

// An immutable, opened file with all its parts. A damaged file does not open: kDataLoss, naming the
// file and what is wrong in it; kUnimplemented for a version or byte order that is not read. Every
// count, length, offset, dimension and alignment is bounded before it is used. A tensor of a type
// that GgmlType lacks is listed by the file but not by this reader: Find and tensors() leave it
// out, Get names its type.
class GgufFile {
 public:
  // One file, or the first of several (NAME-00001-of-0000N.gguf): then all of them, whose tensors
  // come together; the metadata are those of the first.
  static StatusOr<GgufFile> Open(const std::string& path);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  // As it was opened.
  const std::string& path() const;
  // Of all files, the first one first.
  std::vector<std::string> FilePaths() const;

  // Null if there is no such key.
  const GgufValue* FindValue(std::string_view key) const;
  const std::map<std::string_view, GgufValue>& metadata() const;
  // The bytes of each value in the file, which a copy keeps: the number of its type, which
  // GgufValue does not tell, then the value.
  const std::map<std::string_view, std::string_view>& stored_values() const;

  // The value of a key, or the fallback if the key is absent; kDataLoss with file and key if it has
  // another type or lies outside [min, max].
  StatusOr<std::string> TextOr(std::string_view key, std::string_view fallback) const;
  StatusOr<int64_t> IntegerOr(std::string_view key, int64_t fallback, int64_t min,
                              int64_t max) const;
  // Integers count as numbers.
  StatusOr<double> NumberOr(std::string_view key, double fallback, double min, double max) const;
  StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  // Null if the key is absent; kDataLoss if it is no array of that type. An empty array of any type
  // is an empty array of every type.
  StatusOr<const std::vector<std::string_view>*> Texts(std::string_view key) const;
  StatusOr<const std::vector<int64_t>*> Integers(std::string_view key) const;
  StatusOr<const std::vector<double>*> Numbers(std::string_view key) const;

  // Null if there is no such tensor, or it has a type that is not read.
  const GgufTensor* FindTensor(std::string_view name) const;
  // The tensor with exactly this shape, or an error that names the file and the tensor: kNotFound,
  // kUnimplemented with the name of its type, kDataLoss with the found and the wanted shape.
  StatusOr<const GgufTensor*> GetTensor(std::string_view name,
                                        const std::vector<int64_t>& shape) const;
  const std::map<std::string_view, GgufTensor>& tensors() const;
  // The same in the order of their bytes, one file after another.
  std::vector<const GgufTensor*> TensorsInOrder() const;
  // Of a tensor whose type is not read, "name is of type T" for each; empty if all are read.
  std::vector<std::string> UnreadableTensors() const;

  // Tells the system that a tensor's pages are no longer needed (they can be read again).
  void ReleasePages(const GgufTensor& tensor) const;
  // The same of all pages, also those that tensors share.
  void ReleaseAllPages() const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe

// A GgufTestWriter makes small GGUF files for tests, well-formed ones and damaged ones:
//
//   GgufTestWriter writer;
//   writer.AddText("general.architecture", "llama");
//   writer.AddInteger("llama.block_count", 2);
//   writer.AddTexts("tokenizer.ggml.tokens", {"<s>", "a"});
//   writer.AddF32("output_norm.weight", {4}, {1, 1, 1, 1});
//   writer.AddTensor("output.weight", GgmlType::kQ8_0, {2, 32}, bytes_of_two_blocks);
//   writer.Write(folder / "model.gguf");
//
// Keys and tensors are written in the order they come, without a check that they make sense.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/byte_reader.h"
#include "io/gguf/gguf_header.h"

namespace kvlathe {

class GgufTestWriter {
 public:
  explicit GgufTestWriter(uint32_t version = 3) : version_(version) {}

  void AddText(std::string_view key, std::string_view text) {
    BeginKey(key, GgufValueType::kText);
    AppendText(text, &keys_);
  }
  void AddBool(std::string_view key, bool value) {
    BeginKey(key, GgufValueType::kBool);
    AppendBytes<uint8_t>(value, &keys_);
  }
  // As a number of `type`, an integer type.
  void AddInteger(std::string_view key, int64_t value,
                  GgufValueType type = GgufValueType::kUint32) {
    BeginKey(key, type);
    AppendNumber(type, value);
  }
  // As a number of `type`, kFloat32 or kFloat64.
  void AddFloat(std::string_view key, double value, GgufValueType type = GgufValueType::kFloat32) {
    BeginKey(key, type);
    AppendNumber(type, value);
  }
  void AddTexts(std::string_view key, const std::vector<std::string>& texts) {
    BeginArray(key, GgufValueType::kText, texts.size());
    for (const std::string& text : texts) AppendText(text, &keys_);
  }
  // Also an array of kBool.
  void AddIntegers(std::string_view key, const std::vector<int64_t>& values,
                   GgufValueType type = GgufValueType::kInt32) {
    BeginArray(key, type, values.size());
    for (const int64_t value : values) AppendNumber(type, value);
  }
  void AddFloats(std::string_view key, const std::vector<double>& values,
                 GgufValueType type = GgufValueType::kFloat32) {
    BeginArray(key, type, values.size());
    for (const double value : values) AppendNumber(type, value);
  }
  // A key whose value is these bytes, whatever its type.
  void AddRaw(std::string_view key, uint32_t type, std::string_view bytes) {
    BeginKey(key, static_cast<GgufValueType>(type));
    keys_.append(bytes);
  }

  // `shape` is row-major, as in GgufTensor; `bytes` are the tensor's blocks.
  void AddTensor(std::string_view name, GgmlType type, const std::vector<int64_t>& shape,
                 std::string_view bytes) {
    Pad(&data_);
    AddEntry(name, static_cast<uint32_t>(type), {shape.begin(), shape.end()}, data_.size());
    data_.append(bytes);
  }
  void AddF32(std::string_view name, const std::vector<int64_t>& shape,
              const std::vector<float>& values) {
    std::string bytes;
    AppendArray<float>(values, &bytes);
    AddTensor(name, GgmlType::kF32, shape, bytes);
  }
  // The description of a tensor alone: any number of a type, any shape (row-major), any offset into
  // the data.
  void AddEntry(std::string_view name, uint32_t type, std::vector<uint64_t> shape,
                uint64_t offset) {
    AppendText(name, &entries_);
    AppendBytes(static_cast<uint32_t>(shape.size()), &entries_);
    std::ranges::reverse(shape);
    AppendArray<uint64_t>(shape, &entries_);
    AppendBytes(type, &entries_);
    AppendBytes(offset, &entries_);
    ++n_tensors_;
  }
  // Bytes after those of the tensors so far.
  void AddData(std::string_view bytes) { data_.append(bytes); }

  // Before the first tensor. Writes the key too.
  void SetAlignment(uint32_t alignment) {
    alignment_ = alignment;
    AddInteger("general.alignment", alignment);
  }
  // What the file says of its counts, instead of what is so.
  void ClaimTensors(uint64_t n) { claimed_tensors_ = n; }
  void ClaimKeys(uint64_t n) { claimed_keys_ = n; }

  std::string Build() const {
    std::string file = "GGUF";
    AppendBytes(version_, &file);
    AppendBytes(claimed_tensors_.value_or(n_tensors_), &file);
    AppendBytes(claimed_keys_.value_or(n_keys_), &file);
    file += keys_ + entries_;
    if (!data_.empty()) Pad(&file);
    return file + data_;
  }
  void Write(const std::string& path) const { std::ofstream(path, std::ios::binary) << Build(); }

 private:
  static void AppendText(std::string_view text, std::string* out) {
    AppendBytes<uint64_t>(text.size(), out);
    out->append(text);
  }
  void Pad(std::string* out) const {
    out->resize((out->size() + alignment_ - 1) / alignment_ * alignment_);
  }
  void BeginKey(std::string_view key, GgufValueType type) {
    AppendText(key, &keys_);
    AppendBytes(type, &keys_);
    ++n_keys_;
  }
  void BeginArray(std::string_view key, GgufValueType type, uint64_t n_values) {
    BeginKey(key, GgufValueType::kArray);
    AppendBytes(type, &keys_);
    AppendBytes(n_values, &keys_);
  }
  template <typename T>
  void AppendNumber(GgufValueType type, T value) {
    switch (type) {
      case GgufValueType::kUint8:
      case GgufValueType::kBool:
        return AppendBytes(static_cast<uint8_t>(value), &keys_);
      case GgufValueType::kInt8:
        return AppendBytes(static_cast<int8_t>(value), &keys_);
      case GgufValueType::kUint16:
        return AppendBytes(static_cast<uint16_t>(value), &keys_);
      case GgufValueType::kInt16:
        return AppendBytes(static_cast<int16_t>(value), &keys_);
      case GgufValueType::kUint32:
        return AppendBytes(static_cast<uint32_t>(value), &keys_);
      case GgufValueType::kInt32:
        return AppendBytes(static_cast<int32_t>(value), &keys_);
      case GgufValueType::kUint64:
        return AppendBytes(static_cast<uint64_t>(value), &keys_);
      case GgufValueType::kInt64:
        return AppendBytes(static_cast<int64_t>(value), &keys_);
      case GgufValueType::kFloat32:
        return AppendBytes(static_cast<float>(value), &keys_);
      case GgufValueType::kFloat64:
        return AppendBytes(static_cast<double>(value), &keys_);
      case GgufValueType::kText:
      case GgufValueType::kArray:
        return;
    }
  }

  uint32_t version_;
  uint64_t alignment_ = kDefaultGgufAlignment;
  uint64_t n_keys_ = 0;
  uint64_t n_tensors_ = 0;
  std::optional<uint64_t> claimed_keys_, claimed_tensors_;
  std::string keys_, entries_, data_;
};

}  // namespace kvlathe

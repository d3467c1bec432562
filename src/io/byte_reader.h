// A ByteReader reads numbers and texts of a binary file with every length checked; a writer writes
// them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvlathe {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

// Every Read is false, and takes nothing, when the bytes end before.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  bool Read(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }
  // Memory is taken only for what is there.
  template <typename T>
  bool ReadArray(uint64_t n_values, std::vector<T>* values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (bytes_.size() / sizeof(T) < n_values) return false;
    const size_t n_bytes = static_cast<size_t>(n_values) * sizeof(T);
    values->resize(static_cast<size_t>(n_values));
    if (n_bytes > 0) std::memcpy(values->data(), bytes_.data(), n_bytes);
    bytes_ = bytes_.subspan(n_bytes);
    return true;
  }
  // A view into the bytes.
  bool ReadBytes(uint64_t n_bytes, std::string_view* text) {
    if (bytes_.size() < n_bytes) return false;
    *text = {reinterpret_cast<const char*>(bytes_.data()), static_cast<size_t>(n_bytes)};
    bytes_ = bytes_.subspan(static_cast<size_t>(n_bytes));
    return true;
  }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

template <typename T>
void AppendBytes(const T& value, std::string* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void AppendArray(std::span<const T> values, std::string* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  out->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace kvlathe

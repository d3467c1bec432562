// Buffers are memory for weights, activations and cache blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace kvlathe {

// Zeroed, page-aligned memory from the system, returned to it on destruction. Large buffers ask for
// huge pages (the system may ignore it).
class Buffer {
 public:
  Buffer() = default;
  // Fails with kResourceExhausted, naming the size and `what` it was for.
  static StatusOr<Buffer> Allocate(int64_t n_bytes, const char* what);

  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), n_bytes_(std::exchange(other.n_bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
  }
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t n_bytes() const { return n_bytes_; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

  // Grows to at least n_bytes; the old contents are lost. No-op when it is large enough.
  Status EnsureSize(int64_t n_bytes, const char* what);

 private:
  std::byte* data_ = nullptr;
  int64_t n_bytes_ = 0;
};

}  // namespace kvlathe

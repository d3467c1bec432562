// Memory of a machine that has one owner: a table, an activation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "machine/device.h"

namespace kvlathe {

class MachineBuffer {
 public:
  MachineBuffer() = default;
  // `memory` outlives the buffer. kResourceExhausted, naming the size and `what` it was for.
  static StatusOr<MachineBuffer> Allocate(Device* memory, int64_t n_bytes, const char* what);
  // A buffer that holds a copy of `bytes`; an empty one where there are none.
  static StatusOr<MachineBuffer> CopyOf(Device* memory, std::span<const std::byte> bytes,
                                        const char* what);

  MachineBuffer(MachineBuffer&& other) noexcept
      : memory_(other.memory_),
        region_(std::exchange(other.region_, 0)),
        n_bytes_(std::exchange(other.n_bytes_, 0)) {}
  MachineBuffer& operator=(MachineBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(region_, other.region_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
  }
  ~MachineBuffer();

  // Its first byte; no place where the buffer is empty.
  ObjectPlace place() const { return {.object = {.region = region_}}; }
  int64_t n_bytes() const { return n_bytes_; }
  Device* memory() const { return memory_; }

  // Grows to at least n_bytes; the old contents are lost. Nothing happens where it is large enough.
  Status EnsureSize(Device* memory, int64_t n_bytes, const char* what);

 private:
  Device* memory_ = nullptr;
  uint32_t region_ = 0;
  int64_t n_bytes_ = 0;
};

// Floats in the memory of a machine, and on the host for those who read them there.
class FloatTable {
 public:
  FloatTable() = default;
  // Errors as MachineBuffer::Allocate.
  static StatusOr<FloatTable> Make(Device* memory, std::vector<float> values, const char* what);

  bool empty() const { return values_.empty(); }
  size_t size() const { return values_.size(); }
  const float* data() const { return values_.data(); }
  float operator[](size_t i) const { return values_[i]; }
  const std::vector<float>& values() const { return values_; }
  int64_t n_bytes() const { return static_cast<int64_t>(values_.size() * sizeof(float)); }
  // No place where the table is empty.
  ObjectPlace place() const { return buffer_.place(); }

 private:
  std::vector<float> values_;
  MachineBuffer buffer_;
};

}  // namespace kvlathe

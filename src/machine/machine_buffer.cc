#include "machine/machine_buffer.h"

#include "base/units.h"

namespace kvlathe {

StatusOr<MachineBuffer> MachineBuffer::Allocate(Device* memory, int64_t n_bytes, const char* what) {
  MachineBuffer buffer;
  KVL_RETURN_IF_ERROR(buffer.EnsureSize(memory, n_bytes, what));
  return buffer;
}

StatusOr<MachineBuffer> MachineBuffer::CopyOf(Device* memory, std::span<const std::byte> bytes,
                                              const char* what) {
  if (bytes.empty()) return MachineBuffer();
  KVL_ASSIGN_OR_RETURN(MachineBuffer buffer, Allocate(memory, std::ssize(bytes), what));
  memory->Upload(buffer.place(), bytes);
  return buffer;
}

MachineBuffer::~MachineBuffer() {
  if (region_ != 0) memory_->Free(region_);
}

Status MachineBuffer::EnsureSize(Device* memory, int64_t n_bytes, const char* what) {
  if (n_bytes <= n_bytes_) return OkStatus();
  // Given back before the other is taken: the peak is the larger of the two.
  if (region_ != 0) memory_->Free(region_);
  region_ = 0;
  n_bytes_ = 0;
  memory_ = memory;
  if (n_bytes > 0) region_ = memory->Allocate(n_bytes);
  if (region_ == 0) {
    return Error(StatusCode::kResourceExhausted,
                 "no memory for {} ({}); free some, or ask for less", what, FormatBytes(n_bytes));
  }
  n_bytes_ = n_bytes;
  return OkStatus();
}

StatusOr<FloatTable> FloatTable::Make(Device* memory, std::vector<float> values, const char* what) {
  FloatTable table;
  KVL_ASSIGN_OR_RETURN(table.buffer_,
                       MachineBuffer::CopyOf(memory, std::as_bytes(std::span(values)), what));
  table.values_ = std::move(values);
  return table;
}

}  // namespace kvlathe

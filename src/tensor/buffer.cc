#include "tensor/buffer.h"

#include <sys/mman.h>

#include "base/units.h"

namespace kvlathe {

StatusOr<Buffer> Buffer::Allocate(int64_t n_bytes, const char* what) {
  Buffer buffer;
  if (n_bytes == 0) return buffer;
  void* data = n_bytes < 0 ? MAP_FAILED
                           : mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Error(StatusCode::kResourceExhausted,
                 "no memory for {} ({}); free some, or ask for less", what, FormatBytes(n_bytes));
  }
  constexpr int64_t kHugePage = 2 << 20;
  if (n_bytes >= 2 * kHugePage) madvise(data, n_bytes, MADV_HUGEPAGE);
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.n_bytes_ = n_bytes;
  return buffer;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, n_bytes_);
}

Status Buffer::EnsureSize(int64_t n_bytes, const char* what) {
  if (n_bytes <= n_bytes_) return OkStatus();
  { Buffer old = std::move(*this); }  // give back before taking: the peak is the larger of the two
  KVL_ASSIGN_OR_RETURN(*this, Allocate(n_bytes, what));
  return OkStatus();
}

}  // namespace kvlathe

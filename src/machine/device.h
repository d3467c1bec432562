// The memory of a machine, and the order of what is done with it: rows of caches, weights, tables
// and activations lie in it.
//
// A device hands out regions and knows them by number: nobody above it sees an address. What the
// host needs of a region's bytes it uploads, downloads, copies or fills; kernels reach them through
// the code that runs on the device (for a CPU cpu/memory/cpu_device.h). Calls take effect in the
// order in which they are made, kernels among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "machine/object_id.h"

namespace kvlathe {

class CacheJournal;

// One thread allocates and frees, and while it does no other uses the device. The rest may be
// called by several threads at a time, on bytes of their own.
class Device {
 public:
  virtual ~Device() = default;

  // Returns the number of a new region of n_bytes >= 1 that begins at a multiple of
  // kDeviceAlignment; its bytes are undefined. Returns 0 when the system has no memory for it.
  virtual uint32_t Allocate(int64_t n_bytes) = 0;
  virtual void Free(uint32_t region) = 0;
  // What regions can still take in all, where the device has a bound of its own; kUnbounded where
  // the system alone says when memory is short.
  static constexpr int64_t kUnbounded = INT64_MAX;
  virtual int64_t n_free_bytes() const { return kUnbounded; }
  // The granule in which Discard gives memory back, in bytes; larger than any region where it never
  // does.
  virtual int64_t page_bytes() const = 0;
  // Says that whole pages of a region hold nothing. They take no memory until they are written
  // again.
  virtual void Discard(uint32_t region, int64_t offset, int64_t n_bytes) = 0;

  virtual void Upload(const ObjectPlace& to, std::span<const std::byte> from) = 0;
  virtual void Download(const ObjectPlace& from, std::span<std::byte> to) = 0;
  virtual void Copy(const ObjectPlace& to, const ObjectPlace& from, int64_t n_bytes) = 0;
  virtual void Fill(const ObjectPlace& to, std::byte value, int64_t n_bytes) = 0;

  // Says that n_bytes hold nothing any more, from here on in the order of the calls: the block pool
  // has taken an object back. A device that looks for mistakes makes it unreadable.
  virtual void Forget(const ObjectPlace& /*place*/, int64_t /*n_bytes*/) {}

  // What lies there, for the host to read in place until the next call or verb; null where the host
  // does not share this memory and has to download it.
  virtual const std::byte* HostView(const ObjectPlace& /*place*/) { return nullptr; }

  // What is told of the caches in this memory, where other machines hold parts of the same ones
  // (kv/blocks/cache_journal.h); null: nobody is. It is set before the first of them is made and
  // outlives them.
  void set_journal(CacheJournal* journal) { journal_ = journal; }
  CacheJournal* journal() const { return journal_; }

 private:
  CacheJournal* journal_ = nullptr;
};

}  // namespace kvlathe

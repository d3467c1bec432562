// All memory of the KV cache: objects of exact size classes under one byte budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace kvlathe {

enum class ObjectKind {
  kBlock,        // rows of kBlockSize entries of one KV head (or its sink rows)
  kRunRecord,    // what a run shares, per layer, KV head and run
  kLayerRecord,  // what the heads of a layer share, per layer and run
};

struct PoolUsage {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;      // live objects
  int64_t reserved_bytes = 0;  // memory taken from the system
  int64_t peak_bytes = 0;      // the most that used_bytes has been
  int64_t used_by_kind[3] = {0, 0, 0};
};

// Objects are multiples of 64 bytes, 64-byte aligned, reference-counted. Chunks hold objects of one
// size (at most 1 MiB, or one object if that is larger) and go back to the system when empty.
// Not thread-safe: the scheduler is its only caller.
class BlockPool {
 public:
  explicit BlockPool(int64_t budget_bytes);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // One reference; the contents are undefined. Null when the budget or the system has no room.
  std::byte* Allocate(ObjectKind kind, int64_t n_bytes);
  void AddReference(std::byte* object);
  // The object goes back to its chunk with the last reference.
  void Release(std::byte* object);

  // Whether n more bytes of live objects fit the budget.
  bool HasRoomFor(int64_t n_bytes) const;
  PoolUsage usage() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe

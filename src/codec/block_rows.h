// Plain blocks on their way to rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"
#include "format/rows/block_layout.h"
#include "kv/blocks/block_pool.h"

namespace kvlathe {

// Where rows of entries go, one after the other: strides are in numbers.
struct RowsOfHead {
  float* k = nullptr;
  int64_t k_stride = 0;
  float* v = nullptr;
  int64_t v_stride = 0;
};

// The first n entries of a plain block of F32 or Bf16. Where a block has one side, it is both.
void UnpackBlock(const BlockShape& shape, const std::byte* block, int n, const RowsOfHead& to);

// Plain blocks that sealed ones are opened in. What was taken for some heads serves the next ones.
class ScratchBlocks {
 public:
  explicit ScratchBlocks(BlockPool* pool) : pool_(*pool) {}
  ScratchBlocks(const ScratchBlocks&) = delete;
  ScratchBlocks& operator=(const ScratchBlocks&) = delete;
  ~ScratchBlocks();

  // All that was taken is free to be taken again; what lay idle goes back to the pool.
  void Begin();
  // kResourceExhausted when the system has no memory.
  StatusOr<std::vector<ObjectId>> Take(int64_t n, int64_t n_bytes);

 private:
  BlockPool& pool_;
  std::map<int64_t, std::vector<ObjectId>> free_, taken_;  // by their bytes
};

}  // namespace kvlathe

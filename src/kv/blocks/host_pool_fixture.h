// A pool in the host's own memory, for tests.
#pragma once

#include <cstdint>

#include "cpu/memory/cpu_device.h"
#include "kv/blocks/block_pool.h"

namespace kvlathe {

struct HostPoolMemory {
  CpuDevice memory;
};

class HostPool : private HostPoolMemory, public BlockPool {
 public:
  explicit HostPool(int64_t budget_bytes) : BlockPool(budget_bytes, &memory) {}
};

}  // namespace kvlathe

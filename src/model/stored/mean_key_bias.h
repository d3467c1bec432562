// What keys lose before they are stored, where a bias was added to them.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "kv/cache_layout.h"
#include "machine/machine_buffer.h"
#include "model/config.h"

namespace kvlathe {

// Of each KV head of a layer, the mean of its turned bias over the positions of the context:
// [head_dim], on the host and in `memory`. `key_biases` is [n_kv_heads, head_dim], or empty without
// biases. There are none where keys of such a cache are stored as they are. kResourceExhausted when
// the system has no memory.
StatusOr<std::vector<FloatTable>> MeanKeyBiases(const ModelConfig& config,
                                                const CacheLayout& layout, int layer_idx,
                                                std::span<const float> key_biases, Device* memory);

}  // namespace kvlathe

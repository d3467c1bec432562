// Measurements and tests of what sealing loses read the rows that a model computed beside those
// that its cache holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/kernels/attend/attend_packed.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"
#include "model/model.h"

namespace kvlathe {

// Keys and values of every position of one sequence as the model computed them, collected while it
// runs: keys after RoPE, or as they were before it.
class ComputedRows : public QkvObserver {
 public:
  ComputedRows(const CacheLayout& layout, bool keeps_keys_before_rope);

  void Observe(const QkvView& view) override;

  // [n_kv_heads * head_dim]
  const float* key(int layer_idx, int64_t position) const {
    return &k_[layer_idx][position * width_];
  }
  const float* value(int layer_idx, int64_t position) const {
    return &v_[layer_idx][position * width_];
  }

 private:
  int64_t width_;
  bool before_rope_;
  std::vector<std::vector<float>> k_, v_;  // [layer][position * width]
};

// Sealed blocks of one layer and KV head as attention reads them. The model stores rows as they are
// (no basis) and seals codes. Model and cache outlive the reader.
class StoredRows {
 public:
  StoredRows(const Model& model, const SequenceCache& cache, int layer_idx, int kv_head_idx);

  // Reads a block of one of the head's runs; its rows are then those of Key and Value.
  void Read(const SealedRun& run, int block_idx);
  // [head_dim] of an entry of the block, with what was taken off it before it was stored. Keys that
  // are sealed as they were before RoPE come so.
  std::vector<float> Key(int entry) const;
  std::vector<float> Value(int entry) const;

 private:
  // A copy of the first bytes of an object; null for no object or no bytes.
  const std::byte* Fetch(const ObjectId& object, int64_t n_bytes, std::vector<std::byte>* to);

  const CacheLayout& layout_;
  int layer_idx_, kv_head_idx_;
  std::span<const ObjectId> blocks_;
  Device* device_;
  std::span<const float> key_offset_;
  PackedHead head_;
  AttendParams params_;
  std::vector<std::byte> block_, record_, layer_record_;  // as the machine has them
  std::vector<float> values_;                             // of one block
};

}  // namespace kvlathe

// Tests of what fails while a model computes take their weights from this source.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/tensor_source.h"

namespace kvlathe {

// Random weights, all of them finite, that overflow on one token: in the first layer its values are
// infinite. Of the embeddings it alone has a first component, and a weight of the first layer's
// values, in the row of `value_row`, multiplies that by nearly the largest number there is.
class OverflowingSource : public TensorSource {
 public:
  OverflowingSource(uint64_t seed, int32_t token_id, int64_t value_row = 0)
      : source_(MakeRandomSource(seed)), token_id_(token_id), value_row_(value_row) {}

  bool Has(const std::string& name) const override { return source_->Has(name); }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    KVL_ASSIGN_OR_RETURN(StoredTensor tensor, source_->Get(name, shape));
    // The random source keeps each tensor in memory of its own until Done.
    auto* const rows = reinterpret_cast<Bf16*>(const_cast<std::byte*>(tensor.data));
    if (name.find("embed_tokens") != std::string::npos) {
      for (int64_t id = 0; id < shape[0]; ++id) {
        rows[id * shape[1]] = ToBf16(id == token_id_ ? 0.5f : 0.0f);
      }
    }
    if (name.find("layers.0.self_attn.v_proj.weight") != std::string::npos) {
      rows[value_row_ * shape[1]] = ToBf16(3e38f);
    }
    return tensor;
  }
  void Done(const StoredTensor& tensor) override { source_->Done(tensor); }
  bool is_mapped() const override { return false; }

 private:
  std::unique_ptr<TensorSource> source_;
  int32_t token_id_;
  int64_t value_row_;
};

}  // namespace kvlathe

// The architectures of GGUF files with experts.
#include "model/families/gguf_readers.h"

namespace kvlathe::gguf {

Status ReadQwen3Moe(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(c.keys.Copy("expert_count", "num_experts", c.config));
  KVL_RETURN_IF_ERROR(c.keys.Copy("expert_used_count", "num_experts_per_tok", c.config));
  KVL_RETURN_IF_ERROR(c.keys.Copy("expert_feed_forward_length", "moe_intermediate_size", c.config));
  (*c.config)["model_type"] = "qwen3_moe";
  (*c.config)["norm_topk_prob"] = true;
  return OkStatus();
}

}  // namespace kvlathe::gguf

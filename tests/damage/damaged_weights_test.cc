// Tensors that are missing, have another shape or hold NaN, of the golden models: each gives one
// error that names the tensor.
#include <gtest/gtest.h>

#include "damage/damaged_models.h"
#include "io/scratch_folder.h"

namespace kvlathe::testing {
namespace {

enum class Damage { kMissing, kShort, kNan };

struct DamagedTensor {
  const char* model;
  const char* tensor;
  Damage damage;
};

// All bits set are NaN in F32 and BF16, and so is the scale of a block of Q8_0, and the exponent of
// one of MXFP4.
void Spoil(const DamagedTensor& c, CopiedTensors* tensors) {
  const auto found = tensors->find(c.tensor);
  ASSERT_NE(found, tensors->end()) << c.tensor;
  CopiedTensor& tensor = found->second;
  switch (c.damage) {
    case Damage::kMissing:
      tensors->erase(found);
      return;
    case Damage::kShort: {  // one less along the first dimension
      const size_t n = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
      tensor.bytes.resize(tensor.bytes.size() - n);
      --tensor.shape[0];
      return;
    }
    case Damage::kNan:
      for (size_t i = 0; i < 4; ++i) tensor.bytes[i] = '\xff';
      return;
  }
}

const DamagedTensor kFolders[] = {
    {"mixtral", "model.layers.1.block_sparse_moe.gate.weight", Damage::kMissing},
    {"mixtral", "model.layers.1.block_sparse_moe.gate.weight", Damage::kShort},
    {"mixtral", "model.layers.1.block_sparse_moe.gate.weight", Damage::kNan},
    {"mixtral", "model.layers.0.block_sparse_moe.experts.7.w1.weight", Damage::kMissing},
    {"mixtral", "model.layers.0.block_sparse_moe.experts.3.w2.weight", Damage::kShort},
    {"mixtral", "model.layers.1.block_sparse_moe.experts.5.w3.weight", Damage::kNan},
    {"qwen2_moe", "model.layers.0.mlp.shared_expert.up_proj.weight", Damage::kMissing},
    {"qwen2_moe", "model.layers.0.mlp.shared_expert.down_proj.weight", Damage::kNan},
    {"qwen2_moe", "model.layers.0.mlp.shared_expert_gate.weight", Damage::kMissing},
    {"qwen3_moe", "model.layers.1.mlp.experts.0.down_proj.weight", Damage::kNan},
    {"granitemoe", "model.layers.0.block_sparse_moe.input_linear.weight", Damage::kShort},
    {"granitemoe", "model.layers.1.block_sparse_moe.output_linear.weight", Damage::kNan},
    {"granitemoeshared", "model.layers.0.shared_mlp.input_linear.weight", Damage::kMissing},
    {"gpt_oss", "model.layers.0.self_attn.sinks", Damage::kMissing},
    {"gpt_oss", "model.layers.0.self_attn.sinks", Damage::kShort},
    {"gpt_oss", "model.layers.1.self_attn.sinks", Damage::kNan},
    {"gpt_oss", "model.layers.0.mlp.router.bias", Damage::kShort},
    {"gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", Damage::kShort},
    {"gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", Damage::kNan},
    {"gpt_oss", "model.layers.0.mlp.experts.down_proj_bias", Damage::kNan},
    {"gpt_oss", "model.layers.0.mlp.experts.down_proj_bias", Damage::kMissing},
    {"gpt_oss_mxfp4", "model.layers.0.mlp.experts.down_proj_scales", Damage::kMissing},
    {"gpt_oss_mxfp4", "model.layers.0.mlp.experts.down_proj_scales", Damage::kShort},
    {"gpt_oss_mxfp4", "model.layers.0.mlp.experts.gate_up_proj_blocks", Damage::kShort},
    {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.gate_up_proj_scales", Damage::kNan},
    {"glm4_moe", "model.layers.1.mlp.gate.e_score_correction_bias", Damage::kMissing},
    {"glm4_moe", "model.layers.1.mlp.gate.e_score_correction_bias", Damage::kShort},
    {"glm4_moe", "model.layers.1.mlp.gate.e_score_correction_bias", Damage::kNan},
    {"glm4_moe", "model.layers.1.mlp.shared_experts.gate_proj.weight", Damage::kMissing},
    {"glm4_moe", "model.layers.0.mlp.gate_proj.weight", Damage::kMissing},
    {"ernie4_5_moe", "model.layers.1.mlp.moe_statics.e_score_correction_bias", Damage::kNan},
    {"bailing_moe_v2", "model.layers.1.mlp.gate.expert_bias", Damage::kShort},
    {"phimoe", "lm_head.bias", Damage::kShort},
    {"gemma2", "model.layers.0.pre_feedforward_layernorm.weight", Damage::kMissing},
    {"olmo2", "model.layers.0.self_attn.q_norm.weight", Damage::kShort},
    {"cohere_qk_norm", "model.layers.0.self_attn.q_norm.weight", Damage::kShort},
    {"stablelm_parallel", "model.layers.0.self_attn.q_layernorm.norms.1.weight", Damage::kMissing},
    {"apertus", "model.layers.0.mlp.act_fn.alpha_p", Damage::kMissing},
    {"internlm2", "model.layers.0.attention.wqkv.weight", Damage::kShort},
    {"phi", "lm_head.bias", Damage::kNan},
};

TEST(DamagedWeights, TensorsOfFoldersAreNamed) {
  ScratchFolder scratch;
  const std::string folder = scratch / "model";
  for (const DamagedTensor& c : kFolders) {
    SCOPED_TRACE(std::string(c.model) + " " + c.tensor);
    CopyFolder(c.model, folder, [&](CopiedTensors* tensors) { Spoil(c, tensors); });
    // Blocks and scales together are a tensor of values.
    std::string needle = c.tensor;
    if (c.damage == Damage::kNan && needle.ends_with("_scales")) needle.resize(needle.size() - 7);
    ExpectOneClearError(OpenModel(folder), needle);
  }
}

const DamagedTensor kFiles[] = {
    {"mixtral", "blk.1.ffn_gate_inp.weight", Damage::kShort},
    {"mixtral", "blk.1.ffn_gate_inp.weight", Damage::kNan},
    {"mixtral", "blk.0.ffn_gate_exps.weight", Damage::kShort},
    {"mixtral", "blk.0.ffn_down_exps.weight", Damage::kNan},
    {"mixtral", "blk.0.ffn_up_exps.weight", Damage::kMissing},
    {"qwen2_moe", "blk.0.ffn_up_shexp.weight", Damage::kMissing},
    {"qwen2_moe", "blk.0.ffn_gate_inp_shexp.weight", Damage::kNan},
    {"qwen3_moe_mxfp4", "blk.0.ffn_gate_exps.weight", Damage::kShort},
    {"qwen3_moe_mxfp4", "blk.0.ffn_down_exps.weight", Damage::kNan},
    {"qwen3_moe_q8_0", "blk.0.ffn_up_exps.weight", Damage::kNan},
    {"gpt_oss", "blk.1.attn_sinks.weight", Damage::kShort},
    {"gpt_oss", "blk.1.attn_sinks.weight", Damage::kMissing},
    {"gpt_oss", "blk.1.attn_sinks.weight", Damage::kNan},
    {"gpt_oss", "blk.0.ffn_gate_exps.bias", Damage::kShort},
    {"gpt_oss", "blk.0.ffn_gate_inp.bias", Damage::kNan},
    {"glm4_moe", "blk.1.exp_probs_b.bias", Damage::kShort},
    {"glm4_moe", "blk.1.ffn_down_shexp.weight", Damage::kMissing},
    {"olmo3", "blk.0.attn_q_norm.weight", Damage::kShort},
    {"gemma2", "blk.0.post_ffw_norm.weight", Damage::kMissing},
    {"exaone4", "rope_freqs.weight", Damage::kShort},
    {"exaone4", "rope_freqs.weight", Damage::kNan},
};

TEST(DamagedWeights, TensorsOfGgufFilesAreNamed) {
  ScratchFolder scratch;
  const std::string path = scratch / "model.gguf";
  for (const DamagedTensor& c : kFiles) {
    SCOPED_TRACE(std::string(c.model) + " " + c.tensor);
    CopyGguf(c.model, path, {}, [&](CopiedTensors* tensors) { Spoil(c, tensors); });
    ExpectOneClearError(OpenModel(path), c.tensor);
  }
}

}  // namespace
}  // namespace kvlathe::testing

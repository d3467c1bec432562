// What the readers of families share. Each reads its part of config.json into a ModelConfig, with
// errors as ParseModelConfig.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/families/config_families.h"
#include "model/families/config_fields.h"

namespace kvlathe {

inline constexpr int kMaxDim = 1 << 20;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxPositions = 1 << 26;

// Names of the sizes: families disagree.
struct SizeNames {
  const char* layers = "num_hidden_layers";
  const char* hidden = "hidden_size";
  const char* heads = "num_attention_heads";
};

Status ReadSizes(const ConfigFields& fields, const SizeNames& names, ModelConfig* c);
// Whether heads share KV heads out and have widths that this build runs.
Status CheckHeads(const ConfigFields& fields, const ModelConfig& c);
// head_dim of a family whose heads share hidden_dim out.
Status ShareHiddenOut(const ConfigFields& fields, ModelConfig* c);
Status RefuseActivation(const ConfigFields& fields, const char* key, const std::string& name,
                        const char* supported);
// A switch that this build runs in one position only.
Status RequireSwitch(const ConfigFields& fields, const char* key, bool required);
// sliding_window of a model whose layers all have it.
Status ReadWindow(const ConfigFields& fields, ModelConfig* c);
// Epsilon of norms, above 0, so that a row of zeros has a norm.
Status ReadEpsilon(const ConfigFields& fields, const char* key, double fallback, ModelConfig* c);
// What transformers assumes where config.json leaves out a size that families share.
struct ShapeDefaults {
  int n_kv_heads = 0;     // 0: as many as query heads, which null means in every family
  int head_dim = 0;       // 0: heads share hidden_size out, which null means
  int max_positions = 0;  // 0: it must be given
  const char* eps_key = "rms_norm_eps";
  double eps = 1e-6;
  bool is_tied = false;
  SizeNames names = {};
};
// What Llama and the families after it share, but for the activation.
Status ReadShapes(const ConfigFields& fields, ModelConfig* c, const ShapeDefaults& defaults = {});
// The share of channels of a head that rotate: `key`, or partial_rotary_factor of rope_parameters.
// Before ReadRope, with head_dim known.
Status ReadPartialRotary(const ConfigFields& fields, const char* key, double fallback,
                         ModelConfig* c);
// hidden_act, or what stands under another key, which must be `name`; left out it is so.
Status RequireActivation(const ConfigFields& fields, const std::string& name,
                         const char* key = "hidden_act");
// hidden_act, one of the names of GELU: exact or its tanh approximation.
Status ReadGelu(const ConfigFields& fields, const char* fallback, ModelConfig* c);
// The same with its activation, silu.
Status ReadLlamaLike(const ConfigFields& fields, ModelConfig* c,
                     const ShapeDefaults& defaults = {});
// Multiplies embeddings and what blocks put out before it is added. The stream is kept divided by
// `of_residual`, so that nothing needs to be multiplied: embeddings are divided by it, and the
// epsilon of norms, which see squares, by its square. Behind ReadShapes.
void SetMultipliers(double of_embedding, double of_residual, ModelConfig* c);
// attention_bias, of Q, K, V and O alike.
Status ReadAttentionBias(const ConfigFields& fields, ModelConfig* c);
// layer_types, or where there are none every so many layers (sliding_window_pattern): which layers
// are of kind 0 (full_attention) and which of kind 1 (sliding_attention).
Status ReadLayerTypes(const ConfigFields& fields, int default_period, ModelConfig* c);
// layer_types of n_layers layers: whether each is sliding_attention; empty where there are none.
StatusOr<std::vector<bool>> ReadSlidingLayers(const ConfigFields& fields, int n_layers);
// Gives a kind of its own to each pair of RoPE and window that some layer has: `turns` and
// `slides` have n_layers numbers. Layers that do not turn have no positions.
void SetLayerKinds(const RopeConfig& rope, int window, const std::vector<bool>& turns,
                   const std::vector<bool>& slides, ModelConfig* c);

// Families that others begin with.
Status ReadLlama(const ConfigFields& fields, ModelConfig* c);
Status ReadQwen3(const ConfigFields& fields, ModelConfig* c);
Status ReadGranite(const ConfigFields& fields, ModelConfig* c);

// Experts (families/expert_fields.cc).
struct ExpertFieldNames {
  const char* count = "num_experts";
  const char* other_count = "num_local_experts";  // where `count` is not there
  const char* used = "num_experts_per_tok";
  const char* ffn = "moe_intermediate_size";
};
// Sizes of experts; all layers have them.
Status ReadExperts(const ConfigFields& fields, const ExpertFieldNames& names, ModelConfig* c);
// n_group and topk_group.
Status ReadExpertGroups(const ConfigFields& fields, ModelConfig* c);
// The first layers have an MLP, as many as the key says.
Status ReadDenseLayers(const ConfigFields& fields, const char* key, ModelConfig* c);
// Settles what is left: a model in which no layer has experts has none.
void DropUnusedExperts(ModelConfig* c);

// A family, by the model_type of its config.json, and what reads it.
struct Family {
  std::string_view model_type;
  Status (*read)(const ConfigFields& fields, ModelConfig* config);
};

// The families of each file.
std::span<const Family> LlamaFamilies();
std::span<const Family> GemmaFamilies();
std::span<const Family> Phi3Families();
std::span<const Family> Gpt2Families();
std::span<const Family> FalconFamilies();
std::span<const Family> LayerNormFamilies();
std::span<const Family> RmsNormFamilies();
std::span<const Family> PostNormFamilies();
std::span<const Family> NeighbourPairFamilies();
std::span<const Family> ExpertFamilies();
std::span<const Family> LlamasByOtherNames();

}  // namespace kvlathe

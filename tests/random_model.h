// Small random models come in the real file format, beside the same weights for the reference
// decoder.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bases/basis.h"
#include "reference_decoder.h"
#include "reference_dms.h"

namespace kvlathe::testing {

struct RandomModelShape {
  // llama, mistral, qwen2, qwen3, gemma2, gemma3_text, phi3, gpt2, falcon, smollm3, glm4, olmo2,
  // exaone4, granite, cohere (with norms of heads), hunyuan_v1_dense, nemotron, qwen3_moe,
  // glm4_moe, gpt_oss
  std::string model_type = "llama";
  int n_layers = 2, hidden = 64, n_heads = 4, n_kv_heads = 2, head_dim = 16, ffn = 96, vocab = 97;
  int max_positions = 512;
  bool tied = false;
  bool attention_bias = false;  // q, k, v and o; falcon: everything
  bool mlp_bias = false;
  double bias_deviation = 0.5;
  ReferenceRope rope;
  double rotary_fraction = 1;  // phi3, glm4, nemotron
  int window = 0;              // mistral, phi3, Gemma, exaone4, gpt_oss
  // What ReferenceFeatures says of a family.
  ReferenceFeatures features;
  // Gemma, exaone4, gpt_oss
  int whole_every = 0;
  double local_theta = 10000;  // gemma3_text
  double query_scalar = 0;     // Gemma
  // llama, with attention_bias: half of the positions merge, and weights in entries vary
  std::optional<ReferenceDmc> dmc;
  // llama and its kin: a share of the positions may leave
  std::optional<ReferenceDms> dms;
  // gpt2
  std::string prefix = "transformer.";
  std::string activation = "gelu_new";
  // falcon; n_kv_heads is free in the new architecture, otherwise 1 or n_heads
  bool new_architecture = false, parallel = true;
  int n_norms = 1;
};

// Writes config.json and model.safetensors (BF16) into `directory` and returns the same model.
ReferenceModel WriteRandomModel(const RandomModelShape& shape, const std::string& directory,
                                uint64_t seed);

// Random maps of random ranks (multiples of 16), one per layer and KV head.
std::vector<ReferenceBasis> RandomBases(const ReferenceModel& model, uint64_t seed,
                                        int n_sharing = 1);

// The same with keys as latents from before RoPE, which n_sharing heads share: a divisor of
// n_kv_heads.
std::vector<ReferenceBasis> RandomLatentBases(const ReferenceModel& model, uint64_t seed,
                                              int n_sharing = 1);

// The same for the engine, which computes in F32.
ModelBasis ToModelBasis(const ReferenceModel& model, const std::vector<ReferenceBasis>& bases);
// Bases of heads that share latents, as bases of which each maps the rows of those heads together.
ModelBasis ToJoinedBasis(const ReferenceModel& model, const std::vector<ReferenceBasis>& bases);

// Bits for every 16 channels of the maps of a basis, by head.
struct DrawnBits {
  std::vector<std::vector<int>> of_keys, of_values;  // [channel]
  // Of the most attended entries, which have codes of all channels, and of the least attended.
  std::vector<std::vector<int>> of_most_keys, of_most_values, of_least_keys, of_least_values;
};

// Draws them, the same for the same ranks, and gives them to the basis.
DrawnBits DrawSplitBits(ModelBasis* basis);
// Draws bits for classes of entries as well: the least attended and the middle ones lose channels.
DrawnBits DrawClassBits(ModelBasis* basis);

// A fresh folder below the test's temporary directory.
std::string FreshDirectory(const std::string& name);

}  // namespace kvlathe::testing

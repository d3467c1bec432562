// Mistral's models, which are Llamas but for windows and for queries that grow with the position.
#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

// What transformers assumes of a Ministral 3 that says nothing of RoPE.
const nlohmann::json& DefaultRope() {
  static const nlohmann::json rope = {{"rope_type", "yarn"},
                                      {"rope_theta", 1e6},
                                      {"factor", 16},
                                      {"original_max_position_embeddings", 16384},
                                      {"beta_fast", 32},
                                      {"beta_slow", 1},
                                      {"mscale", 1},
                                      {"mscale_all_dim", 1},
                                      {"llama_4_scaling_beta", 0.1}};
  return rope;
}

}  // namespace

Status ReadMistral(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  return ReadWindow(fields, c);
}

Status ReadMinistral(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  if (!fields.Has("sliding_window")) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const int window, fields.Integer("sliding_window", 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, c->n_layers));
  slides.resize(c->n_layers, true);  // without layer_types all have the window
  const RopeConfig rope = c->attention.kinds[0].rope;
  SetLayerKinds(rope, window, std::vector<bool>(c->n_layers, true), slides, c);
  return OkStatus();
}

Status ReadMinistral3(const ConfigFields& fields, ModelConfig* c) {
  const char* key = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!fields.Has(key)) {
    nlohmann::json whole = fields.object();
    whole["rope_parameters"] = DefaultRope();
    return ReadMinistral3(ConfigFields(whole, fields.where()), c);
  }
  KVL_RETURN_IF_ERROR(ReadLlamaLike(
      fields, c, {.n_kv_heads = 8, .head_dim = 128, .max_positions = 262144, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(ReadRope(fields, c));
  KVL_RETURN_IF_ERROR(ReadWindow(fields, c));
  const ConfigFields rope(fields.at(key), fields.where());
  AttentionKind& kind = c->attention.kinds[0];
  KVL_ASSIGN_OR_RETURN(kind.query_growth, rope.NumberOr("llama_4_scaling_beta", 0, 0, 1e3));
  KVL_ASSIGN_OR_RETURN(kind.growth_context, rope.NumberOr("original_max_position_embeddings",
                                                          c->max_seq_len, 1, kMaxPositions));
  return OkStatus();
}

}  // namespace kvlathe

#include "model/families/family_readers.h"

namespace kvlathe {

// What a block puts out is multiplied by residual_multiplier before it is added. The stream is kept
// divided by that number, so that nothing needs to be multiplied: embeddings are divided by it, and
// the epsilon of norms, which see squares, by its square.
Status ReadGranite(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c, {.max_positions = 2048}));
  KVL_RETURN_IF_ERROR(ReadAttentionBias(fields, c));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  const auto multiplier = [&](const char* key) { return fields.NumberOr(key, 1, 1e-6, 1e6); };
  KVL_ASSIGN_OR_RETURN(const double of_embedding, multiplier("embedding_multiplier"));
  KVL_ASSIGN_OR_RETURN(const double of_residual, multiplier("residual_multiplier"));
  KVL_ASSIGN_OR_RETURN(const double of_scores, multiplier("attention_multiplier"));
  KVL_ASSIGN_OR_RETURN(const double of_logits, multiplier("logits_scaling"));
  c->embedding_scale = static_cast<float>(of_embedding / of_residual);
  c->norms.eps = static_cast<float>(c->norms.eps / (of_residual * of_residual));
  c->score_scale = static_cast<float>(of_scores);
  c->logit_scale = static_cast<float>(1 / of_logits);
  return ReadRope(fields, c);
}

}  // namespace kvlathe

#include "model_shapes.h"

namespace kvlathe::testing {
namespace {

std::vector<double> Factors(int n, double from, double to) {
  std::vector<double> factors;
  for (int i = 0; i < n; ++i) factors.push_back(from + (to - from) * i / n);
  return factors;
}

void AddLlamaLike(std::vector<NamedShape>* shapes) {
  RandomModelShape gqa, mha, qwen, biased, scaled, interpolated, wide, dim80, dim96;
  mha.n_kv_heads = 4;
  mha.head_dim = 48;
  qwen.model_type = "qwen2";
  qwen.tied = true;
  biased.attention_bias = true;
  biased.mlp_bias = true;
  scaled.rope = {5e5, "llama3", 8, 1, 4, 64};
  interpolated.rope = {1e4, "linear", 4};
  wide.n_heads = 8;
  wide.n_kv_heads = 1;
  wide.head_dim = 128;
  dim80.head_dim = 80;
  dim96.head_dim = 96;
  dim96.n_kv_heads = 4;
  shapes->insert(shapes->end(), {{"llama_gqa", gqa},
                                 {"llama_mha_dim48", mha},
                                 {"qwen2", qwen},
                                 {"llama_biases", biased},
                                 {"llama3", scaled},
                                 {"llama_interpolated", interpolated},
                                 {"llama_mqa_dim128", wide},
                                 {"llama_dim80", dim80},
                                 {"llama_dim96", dim96}});
}

// A shape with windows in every other layer.
RandomModelShape WithWindows(const char* model_type) {
  RandomModelShape shape;
  shape.model_type = model_type;
  shape.n_layers = 3;
  shape.window = 21;
  shape.whole_every = 2;
  return shape;
}

// Families by what they have that others have not.
void AddFeatured(std::vector<NamedShape>* shapes) {
  RandomModelShape gemma2 = WithWindows("gemma2");
  gemma2.head_dim = 32;
  gemma2.query_scalar = 20;
  gemma2.tied = true;
  gemma2.features.score_cap = 2;
  gemma2.features.logit_cap = 3;
  RandomModelShape smollm3, glm4, olmo2, granite, cohere, hunyuan, nemotron;
  smollm3.model_type = "smollm3";
  smollm3.tied = true;
  smollm3.features.still_every = 2;
  glm4.model_type = "glm4";
  glm4.head_dim = 32;
  glm4.rotary_fraction = 0.5;
  glm4.attention_bias = true;
  olmo2.model_type = "olmo2";
  RandomModelShape exaone4 = WithWindows("exaone4");
  granite.model_type = "granite";
  granite.tied = true;
  granite.features.score_scale = 0.17;
  granite.features.embedding_scale = 3;
  granite.features.residual_scale = 0.7;
  granite.features.logit_scale = 0.125;
  cohere.model_type = "cohere";
  cohere.tied = true;
  cohere.features.logit_scale = 0.25;
  hunyuan.model_type = "hunyuan_v1_dense";
  hunyuan.tied = true;
  nemotron.model_type = "nemotron";
  nemotron.head_dim = 32;
  nemotron.rotary_fraction = 0.5;
  shapes->insert(shapes->end(), {{"gemma2", gemma2},
                                 {"smollm3", smollm3},
                                 {"glm4", glm4},
                                 {"olmo2", olmo2},
                                 {"exaone4", exaone4},
                                 {"granite", granite},
                                 {"cohere_qk_norm", cohere},
                                 {"hunyuan", hunyuan},
                                 {"nemotron", nemotron}});
}

RandomModelShape WithExperts(RandomModelShape shape) {
  shape.features.n_experts = 6;
  shape.features.n_used_experts = 2;
  shape.features.expert_ffn = 32;
  return shape;
}

void AddExperts(std::vector<NamedShape>* shapes) {
  RandomModelShape qwen3_moe, glm4_moe;
  qwen3_moe.model_type = "qwen3_moe";
  glm4_moe.model_type = "glm4_moe";
  glm4_moe.head_dim = 32;
  glm4_moe.rotary_fraction = 0.5;
  glm4_moe.attention_bias = true;
  glm4_moe.features.n_dense_layers = 1;
  glm4_moe.features.experts_scale = 1.7;
  RandomModelShape gpt_oss = WithWindows("gpt_oss");
  gpt_oss.attention_bias = true;
  shapes->insert(shapes->end(), {{"qwen3_moe", WithExperts(qwen3_moe)},
                                 {"glm4_moe", WithExperts(glm4_moe)},
                                 {"gpt_oss", WithExperts(gpt_oss)}});
}

}  // namespace

RandomModelShape GptOssWithoutWindows(double bias_deviation) {
  RandomModelShape shape;
  shape.model_type = "gpt_oss";
  shape.head_dim = 32;
  shape.whole_every = 1;
  shape.attention_bias = true;
  shape.bias_deviation = bias_deviation;
  shape.features.n_experts = 4;
  shape.features.n_used_experts = 2;
  shape.features.expert_ffn = 32;
  return shape;
}

RandomModelShape Phi3LongRope() {
  RandomModelShape phi3;
  phi3.model_type = "phi3";
  phi3.head_dim = 32;
  phi3.rotary_fraction = 0.75;
  phi3.rope.scaling = "longrope";
  phi3.rope.original = 64;
  phi3.rope.short_factors = Factors(12, 1, 2);
  phi3.rope.long_factors = Factors(12, 1.5, 9);
  phi3.rope.uses_long_factors = true;
  return phi3;
}

std::vector<NamedShape> ModelShapes() {
  std::vector<NamedShape> shapes;
  AddLlamaLike(&shapes);
  RandomModelShape qwen3;
  qwen3.model_type = "qwen3";
  qwen3.head_dim = 32;
  qwen3.tied = true;
  shapes.insert(shapes.end(), {{"qwen3", qwen3}});
  RandomModelShape gpt2, bare_gpt2, mistral, narrow, phi3, falcon7, falcon40, falcon11, sequential;
  gpt2.model_type = "gpt2";
  gpt2.n_kv_heads = 4;
  gpt2.ffn = 256;
  gpt2.tied = true;
  gpt2.max_positions = 90;
  bare_gpt2 = gpt2;
  bare_gpt2.prefix = "";
  bare_gpt2.activation = "gelu";
  bare_gpt2.ffn = 80;
  bare_gpt2.tied = false;
  mistral.model_type = "mistral";
  mistral.window = 70;
  narrow = mistral;
  narrow.window = 9;  // whole blocks leave it; so does the sink
  phi3.model_type = "phi3";
  phi3.window = 20;
  phi3.head_dim = 96;
  falcon7.model_type = "falcon";
  falcon7.n_kv_heads = 1;
  falcon7.tied = true;
  falcon40 = falcon7;
  falcon40.new_architecture = true;
  falcon40.n_kv_heads = 2;
  falcon40.n_norms = 2;
  falcon11 = falcon40;
  falcon11.n_norms = 1;
  falcon11.tied = false;
  sequential = falcon7;
  sequential.n_kv_heads = 4;
  sequential.parallel = false;
  sequential.attention_bias = true;
  shapes.insert(shapes.end(), {{"gpt2", gpt2},
                               {"gpt2_without_prefix", bare_gpt2},
                               {"mistral_window", mistral},
                               {"mistral_narrow_window", narrow},
                               {"phi3_window", phi3},
                               {"phi3_longrope", Phi3LongRope()},
                               {"falcon_7b", falcon7},
                               {"falcon_40b", falcon40},
                               {"falcon_11b", falcon11},
                               {"falcon_sequential_biases", sequential}});
  AddFeatured(&shapes);
  AddExperts(&shapes);
  return shapes;
}

}  // namespace kvlathe::testing

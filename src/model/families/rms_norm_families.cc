// Families that differ from Llama by their biases, by the norms of queries and keys, and by what
// stands between the products of the MLP.
#include <cmath>

#include "model/families/family_readers.h"
#include "model/families/xielu.h"

namespace kvlathe {
namespace {

// Hunyuan's files say "dynamic" and mean a larger theta, the same for every length.
Status ReadHunyuanRope(const ConfigFields& fields, ModelConfig* c) {
  const char* const key = fields.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!fields.Has(key) || !fields.at(key).is_object()) return ReadRope(fields, c);
  const ConfigFields inner(fields.at(key), fields.where());
  KVL_ASSIGN_OR_RETURN(const std::string old_name, inner.StringOr("type", "default"));
  KVL_ASSIGN_OR_RETURN(const std::string type, inner.StringOr("rope_type", old_name));
  KVL_ASSIGN_OR_RETURN(const double alpha, inner.NumberOr("alpha", 0, 0, 1e6));
  if (type != "dynamic" || alpha == 0) return ReadRope(fields, c);
  KVL_ASSIGN_OR_RETURN(const double beside, fields.NumberOr("rope_theta", 10000, 1, 1e12));
  KVL_ASSIGN_OR_RETURN(const double theta, inner.NumberOr("rope_theta", beside, 1, 1e12));
  c->attention.kinds[0].rope.theta =
      theta * std::pow(alpha, c->head_dim / (static_cast<double>(c->head_dim) - 2));
  return OkStatus();
}

// Numbers of xIELU that a file has beside its tensors: lists with a number of each layer.
Status ReadXielu(const ConfigFields& fields, ModelConfig* c) {
  if (!fields.Has("xielu")) return OkStatus();
  const std::string in_xielu = fields.where() + ": xielu";
  const ConfigFields inner(fields.at("xielu"), in_xielu);
  const auto numbers = [&](const char* key) {
    return inner.Numbers(key, static_cast<size_t>(c->n_layers), -1e6, 1e6);
  };
  KVL_ASSIGN_OR_RETURN(const std::vector<double> alpha_p, numbers("alpha_p"));
  KVL_ASSIGN_OR_RETURN(const std::vector<double> alpha_n, numbers("alpha_n"));
  KVL_ASSIGN_OR_RETURN(const std::vector<double> beta, numbers("beta"));
  KVL_ASSIGN_OR_RETURN(const std::vector<double> eps, numbers("eps"));
  for (int l = 0; l < c->n_layers; ++l) {
    c->xielu.push_back(XieluOf(alpha_p[l], alpha_n[l], beta[l], eps[l]));
  }
  return OkStatus();
}

Status ReadSeedOss(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(
      ReadShapes(fields, c, {.n_kv_heads = 8, .head_dim = 128, .max_positions = 524288}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "silu"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", true));
  KVL_ASSIGN_OR_RETURN(c->biases.o, fields.BoolOr("attention_out_bias", false));
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  return ReadRope(fields, c);
}

Status ReadHunyuanDense(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kHunyuan;
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c, {.max_positions = 2048, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "silu"));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "use_cla", false));
  KVL_ASSIGN_OR_RETURN(const bool has_qk_norms, fields.BoolOr("use_qk_norm", true));
  if (has_qk_norms) c->norms.of_qk = {.weighs_turned_queries = true};
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  return ReadHunyuanRope(fields, c);
}

Status ReadErnie45(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadShapes(
      fields, c,
      {.n_kv_heads = 2, .head_dim = 128, .max_positions = 131072, .eps = 1e-5, .is_tied = true}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "silu"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("use_bias", false));
  c->biases.o = c->biases.mlp = c->biases.qkv;
  c->has_neighbour_pairs = true;
  return ReadRope(fields, {.default_theta = 500000}, *c, &c->attention.kinds[0].rope);
}

Status ReadInternLm2(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kInternLm2;
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c, {.max_positions = 2048}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "silu"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("bias", true));
  c->biases.o = c->biases.qkv;
  return ReadRope(fields, c);
}

Status ReadArcee(const ConfigFields& fields, ModelConfig* c) {
  c->mlp = MlpKind::kRelu2;
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c, {.max_positions = 4096, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "relu2"));
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  return ReadRope(fields, c);
}

Status ReadApertus(const ConfigFields& fields, ModelConfig* c) {
  c->layout = WeightLayout::kApertus;
  c->mlp = MlpKind::kXielu;
  KVL_RETURN_IF_ERROR(ReadShapes(fields, c, {.max_positions = 65536, .eps = 1e-5}));
  KVL_RETURN_IF_ERROR(RequireActivation(fields, "xielu"));
  KVL_RETURN_IF_ERROR(RequireSwitch(fields, "qk_norm", true));
  c->norms.of_qk = QkNormConfig();
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  KVL_RETURN_IF_ERROR(ReadXielu(fields, c));
  if (fields.Has("rope_parameters") || fields.Has("rope_scaling")) {
    return ReadRope(fields, {.default_theta = 12e6}, *c, &c->attention.kinds[0].rope);
  }
  c->attention.kinds[0].rope = {
      .scaling = RopeConfig::Scaling::kLlama3, .theta = 12e6, .factor = 8};
  return OkStatus();
}

}  // namespace

std::span<const Family> RmsNormFamilies() {
  static constexpr Family kRows[] = {
      {"seed_oss", ReadSeedOss}, {"hunyuan_v1_dense", ReadHunyuanDense},
      {"ernie4_5", ReadErnie45}, {"internlm2", ReadInternLm2},
      {"arcee", ReadArcee},      {"apertus", ReadApertus},
  };
  return kRows;
}

}  // namespace kvlathe

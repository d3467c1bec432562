// Llama and the families that differ from it by switches.
#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

// Where layer_types does not say it, the layers from max_window_layers on have the window.
Status ReadQwenWindows(const ConfigFields& fields, ModelConfig* c) {
  KVL_ASSIGN_OR_RETURN(const bool has_windows, fields.BoolOr("use_sliding_window", false));
  if (!has_windows || fields.IsNull("sliding_window")) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const int window,
                       fields.IntegerOr("sliding_window", 4096, 1, kMaxPositions));
  KVL_ASSIGN_OR_RETURN(std::vector<bool> slides, ReadSlidingLayers(fields, c->n_layers));
  if (slides.empty()) {
    KVL_ASSIGN_OR_RETURN(const int first, fields.IntegerOr("max_window_layers", 28, 0, 1 << 20));
    for (int l = 0; l < c->n_layers; ++l) slides.push_back(l >= first);
  }
  const RopeConfig rope = c->attention.kinds[0].rope;
  SetLayerKinds(rope, window, std::vector<bool>(c->n_layers, true), slides, c);
  return OkStatus();
}

}  // namespace

Status ReadLlama(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(fields, c));
  KVL_ASSIGN_OR_RETURN(const double fraction, fields.NumberOr("partial_rotary_factor", 1, 0, 1));
  if (fraction != 1) {
    return Error(StatusCode::kUnimplemented,
                 "{}: partial_rotary_factor {} is supported in phi3 only", fields.where(),
                 fraction);
  }
  KVL_ASSIGN_OR_RETURN(c->biases.qkv, fields.BoolOr("attention_bias", false));
  c->biases.o = c->biases.qkv;
  KVL_ASSIGN_OR_RETURN(c->biases.mlp, fields.BoolOr("mlp_bias", false));
  return ReadRope(fields, c);
}

Status ReadQwen2(const ConfigFields& fields, ModelConfig* c) {
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  c->biases.qkv = true;
  c->biases.o = false;
  return ReadQwenWindows(fields, c);
}

Status ReadQwen3(const ConfigFields& fields, ModelConfig* c) {
  // Its heads do not share hidden_size out.
  KVL_RETURN_IF_ERROR(fields.Integer("head_dim", 1, kMaxDim).status());
  KVL_RETURN_IF_ERROR(ReadLlama(fields, c));
  c->norms.of_qk = QkNormConfig();
  return ReadQwenWindows(fields, c);
}

}  // namespace kvlathe

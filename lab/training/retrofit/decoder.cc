#include "training/retrofit/decoder.h"

#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>

#include <cmath>

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The type in which x is computed with: element-wise operations on BF16 are not vectorised.
torch::ScalarType WideType(const Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? torch::kFloat : x.scalar_type();
}

// The composite of single operations keeps four F32 copies of x for the backward pass; this keeps x
// and one number a row.
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& w, double eps,
                        torch::ScalarType to) {
    const Tensor scale = torch::rsqrt(torch::mean(x * x, -1, true) + eps);
    context->save_for_backward({x, w, scale});
    return (x * scale).mul_(w).to(to);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], &scale = saved[2];
    const Tensor dy = grads[0].to(x.scalar_type());
    const Tensor normed = x * scale;
    const Tensor dw = w.requires_grad() ? (dy * normed).sum(0) : Tensor();
    const Tensor dn = dy * w;
    const Tensor along = torch::mean(dn * normed, -1, true);
    return {(dn - normed * along).mul_(scale), dw, Tensor(), Tensor()};
  }
};

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& gate_up) {
    context->save_for_backward({gate_up});
    const std::vector<Tensor> halves = gate_up.chunk(2, -1);
    const Tensor gate = halves[0].to(WideType(gate_up));
    return (torch::silu(gate).mul_(halves[1])).to(gate_up.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Tensor gate_up = context->get_saved_variables()[0];
    const std::vector<Tensor> halves = gate_up.chunk(2, -1);
    const Tensor gate = halves[0].to(WideType(gate_up));
    const Tensor sigmoid = torch::sigmoid(gate);
    const Tensor silu = gate * sigmoid;
    const Tensor dy = grads[0].to(gate.scalar_type());
    Tensor d_gate_up = torch::empty_like(gate_up);
    const std::vector<Tensor> d_halves = d_gate_up.chunk(2, -1);
    d_halves[1].copy_(dy * silu);
    // d silu = sigmoid (1 + gate (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
    d_halves[0].copy_((sigmoid + silu * (1 - sigmoid)).mul_(dy).mul_(halves[1]));
    return {d_gate_up};
  }
};

// Keeps x in its own type; the arithmetic of BF16 would round between single operations.
struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, bool is_tanh) {
    context->save_for_backward({x});
    context->saved_data["is_tanh"] = is_tanh;
    return torch::gelu(x.to(WideType(x)), Name(is_tanh)).to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Tensor x = context->get_saved_variables()[0];
    const bool is_tanh = context->saved_data["is_tanh"].toBool();
    const auto wide = WideType(x);
    const Tensor dx = torch::gelu_backward(grads[0].to(wide), x.to(wide), Name(is_tanh));
    return {dx.to(x.scalar_type()), Tensor()};
  }

 private:
  static const char* Name(bool is_tanh) { return is_tanh ? "tanh" : "none"; }
};

// (a, b) -> (a cos - b sin, b cos + a sin); the backward pass turns the other way.
Tensor RotateBy(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  Tensor y = torch::empty_like(x);
  y.narrow(-1, 0, half).copy_(torch::addcmul(a * cos, b, sin, -1));
  y.narrow(-1, half, half).copy_(torch::addcmul(b * cos, a, sin));
  return y;
}

struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return RotateBy(x, cos, sin);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    return {RotateBy(grads[0].contiguous(), saved[0], -saved[1]), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor RmsNorm(const Tensor& x, const Tensor& w, double eps, torch::ScalarType to) {
  return RmsNormFunction::apply(x, w, eps, to);
}

Tensor SwiGlu(const Tensor& gate_up) { return SwiGluFunction::apply(gate_up); }

Tensor Gelu(const Tensor& x, bool is_tanh) { return GeluFunction::apply(x, is_tanh); }

Tensor Rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return RotateFunction::apply(x, cos.unsqueeze(1), sin.unsqueeze(1));
}

Tensor CrossEntropy(const Tensor& logits, const Tensor& targets) {
  return torch::nn::functional::cross_entropy(
      logits.to(WideType(logits)), targets,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
}

Tensor KlDivergence(const Tensor& reference, const Tensor& logits) {
  const Tensor log_p = torch::log_softmax(reference.detach().to(WideType(reference)), -1);
  const Tensor log_q = torch::log_softmax(logits.to(WideType(logits)), -1);
  return (log_p.exp() * (log_p - log_q)).sum(-1);
}

int64_t Decoder::n_parameters() const {
  int64_t n = 0;
  for (const auto& [name, tensor] : parameters_) n += tensor.numel();
  return n;
}

double Decoder::FlopsPerToken(int n_tokens) const {
  const ModelConfig& c = config_;
  const auto of_weight = [](const Tensor& w) {
    return static_cast<double>(w.numel()) * (w.requires_grad() ? 6 : 4);
  };
  double of_weights = of_weight(head_);
  for (const auto& [name, tensor] : parameters_) {
    if (LayerOf(name) >= 0 && tensor.dim() == 2) of_weights += of_weight(tensor);
  }
  // Scores and weighted values: 2 products of n/2 keys on average, 2 FLOPs, forward and 2x
  // backward.
  return of_weights + 6.0 * c.n_layers * n_tokens * c.n_heads * c.head_dim;
}

Tensor Decoder::Normalise(const Tensor& x, const Norm& norm, torch::ScalarType to) const {
  if (!norm.bias.defined()) return RmsNorm(x, norm.weight, config_.norms.eps, to);
  return torch::layer_norm(x, {x.size(-1)}, norm.weight, norm.bias, config_.norms.eps).to(to);
}

Tensor Decoder::Multiply(const Tensor& x, const Projection& projection) const {
  const std::vector<Tensor>& parts = projection.parts;
  const Tensor w = (parts.size() == 1 ? parts[0] : torch::cat(parts)).to(x.scalar_type());
  const Tensor w_t = config_.layout == WeightLayout::kGpt2 ? w : w.t();
  if (!projection.bias.defined()) return torch::mm(x, w_t);
  return torch::addmm(projection.bias.to(x.scalar_type()), x, w_t);
}

Decoder::Projected Decoder::Project(const Layer& layer, const Tensor& x, int64_t batch,
                                    int64_t n_tokens, MergePass* pass) const {
  const ModelConfig& c = config_;
  const Tensor qkv =
      Multiply(x, layer.qkv).view({batch, n_tokens, c.n_heads + 2 * c.n_kv_heads, c.head_dim});
  Tensor qk = qkv.narrow(2, 0, c.n_heads + c.n_kv_heads);
  Projected rows;
  rows.v = qkv.narrow(2, c.n_heads + c.n_kv_heads, c.n_kv_heads);
  if (pass != nullptr) {
    const MergePass::Merged merged =
        pass->Merge(qk.narrow(2, 0, c.n_heads), qk.narrow(2, c.n_heads, c.n_kv_heads), rows.v);
    qk = torch::cat({merged.q, merged.k}, 2);
    rows.v = merged.v;
    rows.effects = merged.effects;
  }
  if (cos_.defined()) qk = Rotate(qk, cos_.narrow(0, 0, n_tokens), sin_.narrow(0, 0, n_tokens));
  if (pass != nullptr) qk = pass->AfterRope(qk);
  rows.q = qk.narrow(2, 0, c.n_heads);
  rows.k = qk.narrow(2, c.n_heads, c.n_kv_heads);
  return rows;
}

Tensor Decoder::Attend(const Layer& layer, const Projected& rows) const {
  const ModelConfig& c = config_;
  const int64_t batch = rows.q.size(0), n_tokens = rows.q.size(1);
  const Tensor q = rows.q.transpose(1, 2).reshape(
      {batch, int64_t{c.n_kv_heads}, int64_t{c.gqa_group()}, n_tokens, int64_t{c.head_dim}});
  const Tensor attended =
      CausalAttention(q, rows.k.transpose(1, 2), rows.v.transpose(1, 2), rows.effects)
          .view({batch, c.n_heads, n_tokens, c.head_dim})
          .transpose(1, 2)
          .reshape({batch * n_tokens, c.n_heads * c.head_dim});
  return Multiply(attended, layer.o);
}

Tensor Decoder::Hidden(const Tensor& tokens, torch::ScalarType compute_type,
                       MergePass* pass) const {
  const int64_t batch = tokens.size(0), n_tokens = tokens.size(1);
  Tensor h = torch::embedding(embedding_, tokens.reshape({batch * n_tokens}));
  if (position_embedding_.defined()) {
    const Tensor places = position_embedding_.narrow(0, 0, n_tokens);
    h = (h.view({batch, n_tokens, -1}) + places).view({batch * n_tokens, -1});
  }
  for (const Layer& layer : layers_) {
    if (pass != nullptr) pass->Observe(h.view({batch, n_tokens, -1}));
    const Tensor normed = Normalise(h, layer.attn_norm, compute_type);
    h = h + Attend(layer, Project(layer, normed, batch, n_tokens, pass));
    const Tensor up = Multiply(Normalise(h, layer.ffn_norm, compute_type), layer.mlp_in);
    const Tensor gated =
        config_.mlp == MlpKind::kSwiglu ? SwiGlu(up) : Gelu(up, config_.mlp == MlpKind::kGeluTanh);
    h = h + Multiply(gated, layer.mlp_out);
  }
  return Normalise(h, final_norm_, compute_type);
}

Tensor Decoder::Logits(const Tensor& hidden) const {
  return torch::mm(hidden, head_.to(hidden.scalar_type()).t());
}

}  // namespace kvlathe

#include "calibration/gradients/layer_products.h"

namespace kvlathe {

Status TokenRows::Prepare(int64_t n_tokens, int64_t width) {
  width_ = width;
  return values_.EnsureSize(n_tokens * width * static_cast<int64_t>(sizeof(float)),
                            "gradients of a layer");
}

Status LayerProducts::Prepare(int64_t n_tokens, int64_t widest) {
  n_tokens_ = n_tokens;
  return packed_.Prepare(n_tokens * widest, n_tokens * widest);
}

Status LayerProducts::Load(const Weight& weight, PassWays ways, LayerMatrix* to) {
  to->packed = &weight;
  if (ways == PassWays::kForward && TakesPacked(weight)) return OkStatus();
  return to->values.Unpack(weight, pool_);
}

void LayerProducts::Multiply(const LayerMatrix& w, const FloatTable& bias, TokenRows* from,
                             TokenRows* to) {
  if (TakesPacked(*w.packed)) {
    return packed_.Run(*w.packed, bias, n_tokens_, from->data(), to->data());
  }
  MultiplyRows({.w = &w.values,
                .n_rows = n_tokens_,
                .from = from->data(),
                .from_stride = from->width(),
                .to = to->data(),
                .to_stride = to->width()},
               bias.empty() ? nullptr : bias.data(), pool_);
}

void LayerProducts::MultiplyBack(const LayerMatrix& w, const float* from, TokenRows* to,
                                 bool accumulate) {
  MultiplyRowsBack({.w = &w.values,
                    .n_rows = n_tokens_,
                    .from = from,
                    .from_stride = w.values.n_out(),
                    .to = to->data(),
                    .to_stride = to->width(),
                    .accumulate = accumulate},
                   pool_);
}

}  // namespace kvlathe

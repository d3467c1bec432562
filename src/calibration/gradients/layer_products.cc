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

void LayerProducts::MultiplySome(const LayerMatrix& w, const RowBias& bias, int64_t n_rows,
                                 const float* from, float* to) {
  if (TakesPacked(*w.packed)) return packed_.Run(*w.packed, bias.place, n_rows, from, to);
  MultiplyRows({.w = &w.values,
                .n_rows = n_rows,
                .from = from,
                .from_stride = w.values.n_in(),
                .to = to,
                .to_stride = w.values.n_out()},
               bias.values, pool_);
}

void LayerProducts::MultiplySomeBack(const LayerMatrix& w, int64_t n_rows, const float* from,
                                     float* to, bool accumulate) {
  MultiplyRowsBack({.w = &w.values,
                    .n_rows = n_rows,
                    .from = from,
                    .from_stride = w.values.n_out(),
                    .to = to,
                    .to_stride = w.values.n_in(),
                    .accumulate = accumulate},
                   pool_);
}

}  // namespace kvlathe

#include "training/retrofit/merging/pool_pass.h"

namespace kvlathe {

using torch::Tensor;

MergePass::Merged PoolPass::Merge(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t batch = k.size(0), n_tokens = k.size(1), n_kv_heads = k.size(2);
  const auto wide = k.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  // Of one position more than there is: what follows the last hides it from nobody.
  const Tensor place = torch::arange(n_tokens + 1, k.device()) - int64_t{recipe_.n_sink};
  const Tensor joins = place.gt(0).logical_and(place.remainder(recipe_.every).ne(0)).to(wide);
  const auto of_every_head = [&](const Tensor& of_positions) {
    return of_positions.expand({batch, n_kv_heads, n_tokens});
  };
  const Tensor alpha = of_every_head(joins.narrow(0, 0, n_tokens));
  Merged merged{q, k, v, {of_every_head(joins.narrow(0, 1, n_tokens) * kMaskedScore)}};
  MergeRows(alpha, torch::ones_like(alpha), recipe_.every, &merged.k, &merged.v);
  return merged;
}

}  // namespace kvlathe

#include "cuda/seal/gram_gatherer.h"

#include <vector>

#include "cuda/kernels/seal/gram.h"

namespace kvlathe {

void GramGatherer::Gather(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  std::vector<cuda::GramRows> items;
  for (const GramPlan& plan : plans) {
    const auto& cache = static_cast<const CudaDevice&>(*plan.device);
    items.push_back({.rows = memory_.At(plan.rows.first),
                     .stride = plan.rows.stride,
                     .n_rows = plan.n_rows,
                     .gram = reinterpret_cast<float*>(cache.At(plan.gram))});
  }
  const cuda::GramRows* const on_device = stream_.Send(std::span<const cuda::GramRows>(items));
  if (on_device == nullptr) return;
  cuda::AddGrams(stream_.get(), {.items = on_device,
                                 .n_items = static_cast<int>(items.size()),
                                 .n_dims = static_cast<int>(n_dims),
                                 .type = type});
}

}  // namespace kvlathe

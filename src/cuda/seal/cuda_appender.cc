#include "cuda/seal/cuda_appender.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/seal/append.h"

namespace kvlathe {
namespace {

// For every item with coded rows, whose sequence it is.
void ReportCodedRows(std::span<const int> sequences, int layer_idx, std::span<const int32_t> flags,
                     StepReport* report) {
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] == 0) continue;
    report->failures.push_back(
        {sequences[i], layer_idx,
         Error(StatusCode::kDataLoss,
               "K or V holds NaN or infinity; such rows cannot be compressed")});
  }
}

std::span<const BlockRows> RowsOf(const AppendPlan& plan, const AppendPlan::Item& item) {
  return std::span(plan.rows).subspan(item.first_rows, item.n_rows);
}

bool HasCodedRows(const AppendPlan& plan, const AppendPlan::Item& item) {
  return std::ranges::any_of(RowsOf(plan, item),
                             [](const BlockRows& rows) { return rows.is_coded; });
}

}  // namespace

void CudaAppender::Append(const AppendPlan& plan) {
  std::vector<int> sequences;  // of items with coded rows
  for (const AppendPlan::Item& item : plan.items) {
    if (HasCodedRows(plan, item)) sequences.push_back(item.sequence);
  }
  int32_t* flag = nullptr;
  if (!sequences.empty()) {
    flag = flags_.Take(std::ssize(sequences),
                       [sequences, layer_idx = plan.layer_idx](auto flags, StepReport* report) {
                         ReportCodedRows(sequences, layer_idx, flags, report);
                       });
    if (flag == nullptr) return;
  }
  std::vector<cuda::AppendedRows> all_rows;
  std::vector<cuda::CopiedBytes> copies;
  for (const AppendPlan::Item& item : plan.items) {
    const auto& cache = static_cast<const CudaDevice&>(*item.device);
    for (const CopyPlan& copy : std::span(plan.copies).subspan(item.first_copy, item.n_copies)) {
      copies.push_back(
          {.from = memory_.At(copy.from), .to = cache.At(copy.to), .n_bytes = copy.n_bytes});
    }
    for (const BlockRows& rows : RowsOf(plan, item)) {
      all_rows.push_back({.shape = rows.shape,
                          .is_coded = rows.is_coded,
                          .first_slot = rows.first_slot,
                          .n_rows = rows.n_rows,
                          .block = cache.At(rows.block),
                          .k = memory_.At(rows.k),
                          .v = memory_.At(rows.v),
                          .k_stride = rows.k_stride,
                          .v_stride = rows.v_stride,
                          .not_finite = flag});
    }
    if (HasCodedRows(plan, item)) ++flag;
  }
  const cuda::AppendKernelParams params = {
      .rows = stream_.Send(std::span<const cuda::AppendedRows>(all_rows)),
      .copies = stream_.Send(std::span<const cuda::CopiedBytes>(copies)),
      .n_rows = static_cast<int>(all_rows.size()),
      .n_copies = static_cast<int>(copies.size())};
  if ((params.rows == nullptr && params.n_rows > 0) ||
      (params.copies == nullptr && params.n_copies > 0)) {
    return;
  }
  cuda::AppendRows(stream_.get(), params);
}

}  // namespace kvlathe

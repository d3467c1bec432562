// What concerns the cache: appending, attention, merging, dropping, cutting and sealing.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu_backend.h"
#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/attend/coded_rows.h"
#include "kv/retention/cut_keys.h"
#include "kv/retention/merge.h"
#include "kv/retention/prune.h"
#include "kv/retention/reopen.h"

namespace kvlathe {

void CpuBackend::Append(const AppendPlan& plan, std::span<uint8_t> is_finite) {
  ForItems(std::ssize(plan.items),
           [&](int64_t i, int) { is_finite[i] = AppendItem(plan, plan.items[i]) ? 1 : 0; });
}

bool CpuBackend::AppendItem(const AppendPlan& plan, const AppendPlan::Item& item) const {
  for (const CopyPlan& copy : std::span(plan.copies).subspan(item.first_copy, item.n_copies)) {
    std::memcpy(copy.to, copy.from, copy.n_bytes);
  }
  bool is_finite = true;
  for (const AppendParams& rows : std::span(plan.rows).subspan(item.first_rows, item.n_rows)) {
    if (!rows.shape.has_coded_rows) {
      GetAttendKernels(isa_, rows.shape.row_type).append(rows);
    } else {
      is_finite = AppendCodedRows(rows) && is_finite;
    }
  }
  return is_finite;
}

Status CpuBackend::Attend(std::span<const HeadJob> jobs, float sm_scale, Schedule schedule) {
  return attention_.Run(jobs, sm_scale, schedule);
}

void CpuBackend::GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  pool_->Run([&](int worker_id) {
    const Range items = ShareOf(std::ssize(plans), 1, worker_id, pool_->n_workers());
    std::vector<float> rows(kBlockSize * n_dims);
    for (int64_t i = items.begin; i < items.end; ++i) {
      const GramPlan& plan = plans[i];
      for (int64_t row = 0; row < plan.n_rows; row += kBlockSize) {
        const int64_t n = std::min<int64_t>(kBlockSize, plan.n_rows - row);
        for (int64_t r = 0; r < n; ++r) {
          ConvertToFloat(type, plan.rows.first + (row + r) * plan.rows.stride * SizeOf(type),
                         n_dims, &rows[r * n_dims]);
        }
        elementwise_->add_gram(rows.data(), n, n_dims, plan.gram);
      }
    }
  });
}

void CpuBackend::MergeRows(const MergeRowsPlan& plan) {
  ForItems(std::ssize(plan.items), [&](int64_t i, int) { MergeItemRows(plan, plan.items[i]); });
}

void CpuBackend::MergeItemRows(const MergeRowsPlan& plan, const MergeItem& item) const {
  OpenEntry open(item.open_entry, plan.merge, plan.head_dim, item.rank_v);
  int n_entries = item.n_entries;
  std::vector<float> value(item.rank_v);
  std::fill_n(item.n_closed, item.n_sinks, -1);
  for (int64_t t = item.n_sinks; t < item.n_tokens; ++t) {
    const bool joins = open.n_positions() > 0 && item.joins[t] != 0;
    if (!joins) {
      open.Close();
      ++n_entries;
    }
    item.n_closed[t] = n_entries - 1;
    float* const key = item.k + t * plan.k_stride;
    std::byte* const stored = item.v + t * plan.v_stride * SizeOf(plan.row_type);
    ConvertToFloat(plan.row_type, stored, item.rank_v, value.data());
    open.Add(item.weights[t], key, value.data());
    if (!joins) continue;  // the mean of one row is the row
    open.Mean(key, value.data());
    elementwise_->convert(value.data(), item.rank_v, plan.row_type, stored);
  }
}

StatusOr<std::vector<int>> CpuBackend::Prune(const CacheLayout& layout, int layer_idx,
                                             std::span<const PackedHead> packed,
                                             SequenceCache* cache) {
  return PruneLayer(layout, layer_idx, packed, pool_, cache);
}

void CpuBackend::CutKeys(std::span<const CutItem> items) {
  ForItems(std::ssize(items),
           [&](int64_t i, int worker_id) { CutKeysOfHead(items[i], worker_id); });
}

void CpuBackend::CutKeysOfHead(const CutItem& item, int worker_id) {
  const int64_t element = SizeOf(item.whole.row_type);
  const int64_t width = item.map == nullptr ? 0 : item.map->n_out();
  std::vector<std::byte> rows(kBlockSize * item.whole.rank_k * element);
  std::vector<std::byte> mapped(kBlockSize * width * element);
  LinearParams params;
  params.w = item.map;
  params.x = rows.data();
  params.x_stride = item.whole.rank_k;
  params.y = mapped.data();
  params.y_stride = width;
  params.y_type = item.whole.row_type;
  int64_t n_left = item.n_entries;
  for (std::byte* const block : item.blocks) {
    if (item.map != nullptr && n_left > 0) {
      params.n_rows = std::min<int64_t>(n_left, kBlockSize);
      ReadKeys(item.whole, static_cast<int>(params.n_rows), block, rows.data());
      linear_.RunOnWorker(params, worker_id);
      WriteKeys(item.cut, {mapped.data(), width, static_cast<int>(params.n_rows)}, block);
    }
    MoveValuesTo(item.cut, item.whole, block);
    n_left -= kBlockSize;
  }
}

Status CpuBackend::Seal(const SealBatch& batch) {
  if (!sealer_.has_value() || sealer_->format != batch.format ||
      sealer_->row_type != batch.row_type || sealer_->power_loops != batch.power_loops) {
    sealer_ = {
        batch.format, batch.row_type, batch.power_loops,
        std::make_unique<Sealer>(batch.format, batch.row_type, batch.power_loops, pool_, isa_)};
  }
  return sealer_->sealer->Run(batch.jobs);
}

Status CpuBackend::SealRotated(std::span<const OnlineSvdHead> heads) {
  return SealByOnlineSvd(heads, {elementwise_, &linear_, pool_});
}

void CpuBackend::MeasureReencodings(std::span<const ReencodedRun> runs,
                                    std::span<Reencoding> errors) {
  ForItems(std::ssize(runs), [&](int64_t i, int) {
    errors[i] = MeasureReencoding(runs[i].sealed, runs[i].plain, runs[i].n_rows);
  });
}

}  // namespace kvlathe

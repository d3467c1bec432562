// What concerns the cache: appending, attention, merging, dropping, cutting and sealing.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/cut_keys.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/coded_rows.h"
#include "cpu/kernels/attend/resolve.h"
#include "cpu/kernels/seal/seal.h"
#include "cpu/prune.h"
#include "cpu/reopen.h"
#include "cpu/svd_online.h"
#include "format/open_entry.h"

namespace kvlathe {

namespace {

// Of all items of a verb.
template <typename Item>
CpuAccesses AccessesOf(std::span<const Item> items) {
  CpuAccesses accesses;
  for (const Item& item : items) accesses.Open(item.device);
  return accesses;
}

}  // namespace

StatusOr<StepReport> CpuBackend::Finish() {
  const Status failure = std::exchange(failure_, OkStatus());
  StepReport report = std::exchange(report_, {});
  const AttentionSeconds seconds = attention_.TakeSeconds();
  report.plan_seconds = seconds.plan;
  report.rebuild_seconds = seconds.rebuild;
  if (!failure.ok()) return failure;
  return report;
}

void CpuBackend::Append(const AppendPlan& plan) {
  const CpuAccesses accesses = AccessesOf(std::span(plan.items));
  const CpuAccess own(*memory_);
  std::vector<uint8_t> is_finite(plan.items.size());
  ForItems(std::ssize(plan.items), [&](int64_t i, int) {
    const AppendPlan::Item& item = plan.items[i];
    const CpuLookup lookup = {accesses.Of(item.device), own, residents_};
    is_finite[i] = AppendItem(plan, item, lookup) ? 1 : 0;
  });
  for (size_t i = 0; i < is_finite.size(); ++i) {
    if (is_finite[i] != 0) continue;
    report_.failures.push_back(
        {plan.items[i].sequence, plan.layer_idx,
         Error(StatusCode::kDataLoss,
               "K or V holds NaN or infinity; such rows cannot be compressed")});
  }
}

bool CpuBackend::AppendItem(const AppendPlan& plan, const AppendPlan::Item& item,
                            const CpuLookup& lookup) const {
  for (const CopyPlan& copy : std::span(plan.copies).subspan(item.first_copy, item.n_copies)) {
    std::memcpy(lookup.cache.At(copy.to), lookup.own.At(copy.from), copy.n_bytes);
  }
  bool is_finite = true;
  for (const BlockRows& rows : std::span(plan.rows).subspan(item.first_rows, item.n_rows)) {
    const AppendParams params = {.shape = rows.shape,
                                 .block = lookup.cache.At(rows.block),
                                 .first_slot = rows.first_slot,
                                 .n_rows = rows.n_rows,
                                 .k = lookup.own.At(rows.k),
                                 .k_stride = rows.k_stride,
                                 .v = lookup.own.At(rows.v),
                                 .v_stride = rows.v_stride};
    if (!rows.is_coded) {
      GetAttendKernels(isa_, rows.shape.row_type).append(params);
    } else {
      is_finite = AppendCodedRows(params) && is_finite;
    }
  }
  return is_finite;
}

void CpuBackend::Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) {
  failure_.Update(attention_.Run(jobs, rule, schedule));
}

void CpuBackend::GatherGrams(std::span<const GramPlan> plans, int64_t n_dims, DType type) {
  const CpuAccesses accesses = AccessesOf(plans);
  const CpuAccess own(*memory_);
  pool_->Run([&](int worker_id) {
    const Range items = ShareOf(std::ssize(plans), 1, worker_id, pool_->n_workers());
    std::vector<float> rows(kBlockSize * n_dims);
    for (int64_t i = items.begin; i < items.end; ++i) {
      const GramPlan& plan = plans[i];
      auto* const gram = reinterpret_cast<float*>(accesses.Of(plan.device).At(plan.gram));
      for (int64_t row = 0; row < plan.n_rows; row += kBlockSize) {
        const int64_t n = std::min<int64_t>(kBlockSize, plan.n_rows - row);
        for (int64_t r = 0; r < n; ++r) {
          ConvertToFloat(type,
                         own.At(plan.rows.first) + (row + r) * plan.rows.stride * SizeOf(type),
                         n_dims, &rows[r * n_dims]);
        }
        elementwise_->add_gram(rows.data(), n, n_dims, gram);
      }
    }
  });
}

void CpuBackend::MergeRows(const MergeRowsPlan& plan, std::span<int> n_closed) {
  const CpuAccesses accesses = AccessesOf(plan.items);
  const CpuAccess own(*memory_);
  ForItems(std::ssize(plan.items), [&](int64_t i, int) {
    const MergeItem& item = plan.items[i];
    MergeItemRows(plan, item, {accesses.Of(item.device), own, residents_},
                  &n_closed[item.first_closed]);
  });
}

void CpuBackend::MergeItemRows(const MergeRowsPlan& plan, const MergeItem& item,
                               const CpuLookup& lookup, int* n_closed) const {
  OpenEntry open(lookup.cache.At(item.open_entry), plan.merge, plan.head_dim, item.rank_v);
  int n_entries = item.n_entries;
  std::vector<float> value(item.rank_v);
  std::fill_n(n_closed, item.n_sinks, -1);
  for (int64_t t = item.n_sinks; t < item.n_tokens; ++t) {
    const bool joins = open.n_positions() > 0 && item.joins[t] != 0;
    if (!joins) {
      open.Close();
      ++n_entries;
    }
    n_closed[t] = n_entries - 1;
    float* const key = lookup.own.As<float>(item.k) + t * plan.k_stride;
    std::byte* const stored = lookup.own.At(item.v) + t * plan.v_stride * SizeOf(plan.row_type);
    ConvertToFloat(plan.row_type, stored, item.rank_v, value.data());
    open.Add(item.weights[t], key, value.data());
    if (!joins) continue;  // the mean of one row is the row
    open.Mean(key, value.data());
    elementwise_->convert(value.data(), item.rank_v, plan.row_type, stored);
  }
}

void CpuBackend::Prune(const PrunePlan& plan) {
  const CpuAccess cache(*plan.device), own(*memory_);
  const std::vector<int> n_sealed = PruneHeads(plan, {cache, own, residents_}, pool_);
  for (int g = 0; g < std::ssize(n_sealed); ++g) sealed_before_[{plan.sequence, g}] = n_sealed[g];
}

void CpuBackend::CutKeys(std::span<const CutItem> items) {
  const CpuAccesses accesses = AccessesOf(items);
  const CpuAccess own(*memory_);  // of the maps
  ForItems(std::ssize(items), [&](int64_t i, int worker_id) {
    CutKeysOfHead(items[i], accesses.Of(items[i].device), worker_id);
  });
}

void CpuBackend::CutKeysOfHead(const CutItem& item, const CpuAccess& access, int worker_id) {
  const int64_t element = SizeOf(item.whole.row_type);
  const PackedMatrix* const map = residents_.At(item.map);
  const int64_t width = map == nullptr ? 0 : map->n_out();
  std::vector<std::byte> rows(kBlockSize * item.whole.rank_k * element);
  std::vector<std::byte> mapped(kBlockSize * width * element);
  LinearParams params;
  params.w = map;
  params.x = rows.data();
  params.x_stride = item.whole.rank_k;
  params.y = mapped.data();
  params.y_stride = width;
  params.x_type = params.y_type = item.whole.row_type;
  int64_t n_left = item.n_entries;
  for (const ObjectId& id : item.blocks) {
    std::byte* const block = access.At(id);
    if (map != nullptr && n_left > 0) {
      params.n_rows = std::min<int64_t>(n_left, kBlockSize);
      ReadKeys(item.whole, static_cast<int>(params.n_rows), block, rows.data());
      linear_.RunOnWorker(params, worker_id);
      WriteKeys(item.cut, {mapped.data(), width, static_cast<int>(params.n_rows)}, block);
    }
    MoveValuesTo(item.cut, item.whole, block);
    n_left -= kBlockSize;
  }
}

// The lists of addresses that jobs of sealing point to.
class CpuBackend::SealAddresses {
 public:
  std::span<const SealHead> HeadsOf(const SealRunPlan& run, const CpuAccess& access) {
    std::vector<SealHead>& heads = heads_.emplace_back();
    for (const SealHeadPlan& head : run.heads) {
      heads.push_back({.rank_k = head.shape.rank_k,
                       .rank_v = head.shape.rank_v,
                       .blocks = BlocksOf(head, access),
                       .packed = PackedOf(head, access),
                       .record = access.At(head.record),
                       .storage = head.storage});
    }
    return heads;
  }
  const std::byte* const* BlocksOf(const SealHeadPlan& head, const CpuAccess& access) {
    std::vector<const std::byte*>& list = blocks_.emplace_back();
    for (const ObjectId& block : head.blocks) list.push_back(access.At(block));
    const auto is_there = [](const std::byte* block) { return block != nullptr; };
    const auto first = std::ranges::find_if(list, is_there);
    if (first != list.end()) std::fill(list.begin(), first, *first);
    return list.data();
  }
  std::byte* const* PackedOf(const SealHeadPlan& head, const CpuAccess& access) {
    return packed_.emplace_back(access.At(head.packed)).data();
  }

 private:
  std::deque<std::vector<SealHead>> heads_;
  std::deque<std::vector<const std::byte*>> blocks_;
  std::deque<std::vector<std::byte*>> packed_;
};

template <typename Item, typename F>
void CpuBackend::SealEach(int layer_idx, std::span<const Item> items, const F& seal) {
  const Status together = seal(items);
  if (together.ok()) return;
  const size_t n_items = items.size();
  while (!items.empty()) {
    const int sequence = items.front().sequence;
    const auto end = std::ranges::find_if(
        items, [sequence](const Item& item) { return item.sequence != sequence; });
    const auto own = items.first(end - items.begin());
    const Status alone = own.size() == n_items ? together : seal(own);
    if (!alone.ok()) report_.failures.push_back({sequence, layer_idx, alone});
    items = items.subspan(own.size());
  }
}

void CpuBackend::Seal(const SealBatch& batch) {
  if (!sealer_.has_value() || sealer_->format != batch.format ||
      sealer_->row_type != batch.row_type || sealer_->power_loops != batch.power_loops) {
    sealer_ = {
        batch.format, batch.row_type, batch.power_loops,
        std::make_unique<Sealer>(batch.format, batch.row_type, batch.power_loops, pool_, isa_)};
  }
  SealEach(batch.layer_idx, batch.runs, [&](auto runs) { return SealTogether(runs); });
}

Status CpuBackend::SealTogether(std::span<const SealRunPlan> runs) {
  const CpuAccesses accesses = AccessesOf(runs);
  const CpuAccess own(*memory_);
  SealAddresses addresses;
  std::vector<SealJob> jobs;
  for (const SealRunPlan& run : runs) {
    const CpuAccess& access = accesses.Of(run.device);
    jobs.push_back({.heads = addresses.HeadsOf(run, access),
                    .first_head = run.first_head,
                    .layer_record = access.At(run.layer_record),
                    .n_blocks = run.n_blocks,
                    .is_prompt = run.is_prompt,
                    .is_repaired = run.is_repaired,
                    .entry_class = run.entry_class,
                    .seed = run.seed,
                    .codebooks = residents_.At(run.codebooks),
                    .rotation = KeyRotationAt(own, run.rotation)});
  }
  return sealer_->sealer->Run(jobs);
}

void CpuBackend::SealRotated(const RotatedBatch& batch) {
  SealEach(batch.layer_idx, batch.heads, [&](auto heads) { return SealTogether(heads); });
}

Status CpuBackend::SealTogether(std::span<const RotatedHeadPlan> heads) {
  const CpuAccesses accesses = AccessesOf(heads);
  const CpuAccess own(*memory_);
  SealAddresses addresses;
  std::vector<OnlineSvdHead> at;
  for (const RotatedHeadPlan& plan : heads) {
    const CpuAccess& access = accesses.Of(plan.device);
    at.push_back({.shape = plan.packed_shape,
                  .blocks = addresses.BlocksOf(plan.head, access),
                  .packed = addresses.PackedOf(plan.head, access),
                  .record = access.At(plan.head.record),
                  .rotations = access.At(plan.rotations),
                  .query_gram = reinterpret_cast<const float*>(access.At(plan.query_gram)),
                  .output_gram = own.As<const double>(plan.output_gram),
                  .is_normalised = plan.is_normalised});
  }
  return SealByOnlineSvd(at, {elementwise_, &linear_, pool_});
}

void CpuBackend::Open(std::span<const OpenedRun> runs) {
  const CpuAccesses accesses = AccessesOf(runs);
  const CpuAccess own(*memory_);
  ForItems(std::ssize(runs), [&](int64_t i, int) {
    const OpenedRun& run = runs[i];
    const CpuAccess& access = accesses.Of(run.device);
    std::vector<PackedRun> packed_runs;
    const std::vector<std::byte*> blocks = access.At(run.blocks);
    CopyKept({.shape = run.shape,
              .packed = PackedHeadAt({access, own, residents_}, run.sealed, &packed_runs),
              .blocks = blocks,
              .n_entries = static_cast<int>(run.blocks.size()) * kBlockSize},
             /*dropped=*/{}, access.At(run.plain));
  });
}

void CpuBackend::MeasureReencodings(std::span<const ReencodedRun> runs) {
  const CpuAccesses accesses = AccessesOf(runs);
  const CpuAccess own(*memory_);
  std::vector<Reencoding> costs(runs.size());
  ForItems(std::ssize(runs), [&](int64_t i, int) {
    const ReencodedRun& run = runs[i];
    // What could not be sealed holds nothing that can be read.
    const auto has_failed = [&](const auto& f) { return f.sequence == run.sequence; };
    if (std::ranges::any_of(report_.failures, has_failed)) return;
    const CpuAccess& access = accesses.Of(run.device);
    std::vector<PackedRun> packed_runs;
    const std::vector<std::byte*> blocks = access.At(run.blocks);
    const int n_sealed = sealed_before_.at({run.sequence, run.kv_head_idx});
    costs[i] = MeasureReencoding(
        {.shape = run.shape,
         .packed = PackedHeadAt({access, own, residents_}, run.sealed, &packed_runs),
         .blocks = blocks},
        access.At(run.plain), std::min(n_sealed, run.max_rows));
  });
  for (size_t i = 0; i < runs.size(); ++i) {
    report_.reencoded.push_back({runs[i].sequence, costs[i]});
  }
}

}  // namespace kvlathe

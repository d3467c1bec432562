#include "cpu/kernels/linear/linear.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "cpu/kernels/linear/blocks/block_layout.h"
#include "cpu/kernels/linear/blocks/quantized_rows.h"
#include "cpu/kernels/linear/linear_dnnl.h"
#include "cpu/kernels/linear/linear_part.h"

namespace kvlathe {
namespace {

// Workers that share rows read the weights once each: worth it when each has this many rows.
constexpr int64_t kMinRowsPerPart = 64;

// Fewer numbers of rows are made integers faster than other workers are woken for it.
constexpr int64_t kMinSharedInputs = 16384;

// Of the blocks of a few-row product, the part that workers take in equal shares beforehand.
constexpr int64_t kOwnShareNumerator = 3;
constexpr int64_t kOwnShareDenominator = 4;

// Of grouped products of many rows, about as many steps go to each worker.
constexpr int64_t kStepsPerWorker = 16;

// How y is cut: row_parts x out_parts parts, at most one per worker.
struct Cut {
  int64_t row_parts;
  int64_t out_parts;
};

// The cut whose largest part is smallest. Of equals the one with most row parts: oneDNN reads and
// writes whole rows in place.
Cut ChooseCut(int64_t n_rows, int64_t n_out, int n_workers) {
  const int64_t n_blocks = RoundUp(n_out, kOutBlock) / kOutBlock;
  Cut best = {1, std::min<int64_t>(n_workers, n_blocks)};
  const auto largest_part = [&](const Cut& c) {
    return (RoundUp(n_rows, c.row_parts) / c.row_parts) *
           (RoundUp(n_blocks, c.out_parts) / c.out_parts);
  };
  for (int64_t row_parts = 2; row_parts <= n_workers; ++row_parts) {
    if (n_rows < row_parts * kMinRowsPerPart) break;
    const Cut cut = {row_parts, std::min<int64_t>(n_workers / row_parts, n_blocks)};
    if (largest_part(cut) <= largest_part(best)) best = cut;
  }
  return best;
}

LinearPart PartOf(const LinearParams& p, Range rows, Range outs) {
  const int64_t x_bytes = SizeOf(p.x_type);
  LinearPart part = {
      .x_type = p.x_type,
      .n_rows = rows.end - rows.begin,
      .n_out = outs.end - outs.begin,
      .n_in = p.w->n_in(),
      .x = static_cast<const std::byte*>(p.x) + rows.begin * p.x_stride * x_bytes,
      .x_stride = p.x_stride,
      .integers = nullptr,
      .w = nullptr,
      .w_stride = 0,
      .bias = p.bias == nullptr ? nullptr : p.bias + outs.begin,
      .y = static_cast<std::byte*>(p.y) + (rows.begin * p.y_stride + outs.begin) * SizeOf(p.y_type),
      .y_stride = p.y_stride,
      .y_type = p.y_type,
      .accumulate = p.accumulate};
  p.w->format().PlacePart(p.w->size(), p.w->data(), outs.begin, &part);
  return part;
}

void CheckParams(const LinearParams& p) {
  KVL_DCHECK(p.w != nullptr && p.x != nullptr && p.y != nullptr);
  KVL_DCHECK(p.w->format().Multiplies(p.x_type));
  KVL_DCHECK(p.n_rows <= 1 || (p.x_stride >= p.w->n_in() && p.y_stride >= p.w->n_out()));
  KVL_DCHECK(p.y_type == DType::kF32 || (p.y_type == DType::kBf16 && !p.accumulate));
}

// Rows as integers of 8 bits.
class IntegerRows {
 public:
  void Resize(int64_t n_rows, int64_t n_in) {
    n_in_ = n_in;
    codes_.resize(std::max<size_t>(codes_.size(), n_rows * n_in));
    blocks_.resize(std::max<size_t>(blocks_.size(), n_rows * n_in / kBlockIns));
  }
  void Quantize(const LinearParams& p, Range rows, Isa isa) {
    const auto quantize = isa == Isa::kScalar ? QuantizeRowScalar : QuantizeRowAvx2;
    const std::byte* const x = static_cast<const std::byte*>(p.x);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      quantize(p.x_type, x + row * p.x_stride * SizeOf(p.x_type), n_in_, &codes_[row * n_in_],
               &blocks_[row * n_in_ / kBlockIns]);
    }
  }
  QuantizedRows rows() const { return {codes_.data(), n_in_, blocks_.data(), n_in_ / kBlockIns}; }

 private:
  int64_t n_in_ = 0;
  std::vector<int8_t> codes_;
  std::vector<RowBlock> blocks_;
};

}  // namespace

struct Linear::State {
  ThreadPool* pool;
  Isa isa;
  bool is_deterministic = false;
  bool has_exact_rows = false;
  std::vector<DnnlLinear> dnnl;                 // by worker; empty on kScalar
  std::vector<std::vector<std::byte>> scratch;  // by worker
  std::vector<IntegerRows> own_integers;        // by worker, for RunOnWorker
  IntegerRows integers;                         // of all workers

  // Few rows are bound by reading the weights, and workers do not read equally fast when others use
  // the machine: each has a share of its own in a row, and the rest goes block by block to whoever
  // is ready. Every output is the work of one worker, so the result does not depend on who.
  void RunFewRows(const LinearParams& p, const IntegerRows* rows) {
    const int64_t n_out = p.w->n_out(), n_blocks = RoundUp(n_out, kOutBlock) / kOutBlock;
    const int64_t n_own = n_blocks * kOwnShareNumerator / kOwnShareDenominator / pool->n_workers();
    std::atomic<int64_t> next_block = n_own * pool->n_workers();
    const auto run_blocks = [&](int64_t first, int64_t n, int worker_id) {
      const Range outs = {first * kOutBlock, std::min((first + n) * kOutBlock, n_out)};
      RunPart(p, rows, 0, {0, p.n_rows}, outs, worker_id);
    };
    pool->Run([&](int worker_id) {
      if (n_own > 0) run_blocks(worker_id * n_own, n_own, worker_id);
      for (int64_t block;
           (block = next_block.fetch_add(1, std::memory_order_relaxed)) < n_blocks;) {
        run_blocks(block, 1, worker_id);
      }
    });
  }

  // `all` has the rows as integers, or is null; the first row of p is number first_integers there.
  void RunPart(const LinearParams& p, const IntegerRows* all, int64_t first_integers, Range rows,
               Range outs, int worker_id) {
    if (rows.begin == rows.end || outs.begin == outs.end) return;
    DnnlLinear* const of_worker = dnnl.empty() ? nullptr : &dnnl[worker_id];
    LinearPart part = PartOf(p, rows, outs);
    QuantizedRows of_part;
    if (all != nullptr) {
      of_part = all->rows().From(first_integers + rows.begin);
      part.integers = &of_part;
    }
    const bool is_repeatable = is_deterministic || p.is_repeatable;
    p.w->format().Multiply(part, {isa, is_repeatable, of_worker, &scratch[worker_id]});
  }

  // All blocks of 64 outputs of all items are one row of tasks. Where the rows of every item are
  // few, workers begin with equal shares of it, as in RunFewRows; else items differ, and all goes
  // to whoever is ready.
  void RunBlocksOf(const GroupedProducts& products, const LinearParams& of_x,
                   const IntegerRows* all) {
    const int64_t n_out = of_x.y_stride, n_blocks = RoundUp(n_out, kOutBlock) / kOutBlock;
    const int64_t n_tasks = n_blocks * std::ssize(products.items), n_workers = pool->n_workers();
    const bool has_few_rows = std::ranges::all_of(products.items, [&](const auto& item) {
      return item.n_rows < item.w->format().FewRows(isa);
    });
    const int64_t n_own =
        has_few_rows ? n_tasks * kOwnShareNumerator / kOwnShareDenominator / n_workers : 0;
    const int64_t step =
        has_few_rows ? 1
                     : std::clamp<int64_t>(n_tasks / (kStepsPerWorker * n_workers), 1, n_blocks);
    std::atomic<int64_t> next_task = n_own * n_workers;
    const auto run_tasks = [&](int64_t first, int64_t end, int worker_id) {
      while (first < end) {
        const GroupedProducts::Item& item = products.items[first / n_blocks];
        const int64_t block = first % n_blocks, n = std::min(end - first, n_blocks - block);
        RunItem(products, of_x, item, all,
                {block * kOutBlock, std::min((block + n) * kOutBlock, n_out)}, worker_id);
        first += n;
      }
    };
    pool->Run([&](int worker_id) {
      run_tasks(worker_id * n_own, (worker_id + 1) * n_own, worker_id);
      for (int64_t task; (task = next_task.fetch_add(step, std::memory_order_relaxed)) < n_tasks;) {
        run_tasks(task, std::min(task + step, n_tasks), worker_id);
      }
    });
  }

  void RunItem(const GroupedProducts& products, const LinearParams& of_x,
               const GroupedProducts::Item& item, const IntegerRows* all, Range outs,
               int worker_id) {
    LinearParams p = of_x;
    p.w = item.w;
    p.bias = item.bias;
    p.n_rows = item.n_rows;
    p.y = products.y + item.first_y * of_x.y_stride;
    // Rows as integers are counted from the first of x.
    const auto* const x = static_cast<const std::byte*>(products.x);
    p.x = x + item.first_x * p.x_stride * SizeOf(p.x_type);
    RunPart(p, TakesIntegers(p) ? all : nullptr, item.first_x, {0, item.n_rows}, outs, worker_id);
  }

  bool TakesIntegers(const LinearParams& p) const {
    return !has_exact_rows && p.w->format().TakesIntegers(p.x_type);
  }

  // The rows as integers, made by all workers where they are many; null: they stay as they are.
  const IntegerRows* MakeIntegers(const LinearParams& p) {
    if (!TakesIntegers(p)) return nullptr;
    integers.Resize(p.n_rows, p.w->n_in());
    if (p.n_rows * p.w->n_in() < kMinSharedInputs) {
      integers.Quantize(p, {0, p.n_rows}, isa);
    } else {
      pool->Run([&](int worker_id) {
        integers.Quantize(p, ShareOf(p.n_rows, 1, worker_id, pool->n_workers()), isa);
      });
    }
    return &integers;
  }
};

Linear::Linear(ThreadPool* pool, Isa isa) : state_(std::make_unique<State>()) {
  state_->pool = pool;
  state_->isa = isa;
  state_->scratch.resize(pool->n_workers());
  state_->own_integers.resize(pool->n_workers());
  if (isa != Isa::kScalar) state_->dnnl = std::vector<DnnlLinear>(pool->n_workers());
}

Linear::~Linear() = default;

void Linear::set_deterministic(bool deterministic) { state_->is_deterministic = deterministic; }

void Linear::set_exact_rows(bool exact) { state_->has_exact_rows = exact; }

void Linear::Run(const LinearParams& params) {
  CheckParams(params);
  const IntegerRows* const integers = state_->MakeIntegers(params);
  const int n_workers = state_->pool->n_workers();
  const bool is_few_rows = params.n_rows < params.w->format().FewRows(state_->isa);
  if (n_workers > 1 && is_few_rows) return state_->RunFewRows(params, integers);
  const Cut cut = ChooseCut(params.n_rows, params.w->n_out(), n_workers);
  state_->pool->Run([&](int worker_id) {
    if (worker_id >= cut.row_parts * cut.out_parts) return;
    const Range rows = ShareOf(params.n_rows, 1, static_cast<int>(worker_id / cut.out_parts),
                               static_cast<int>(cut.row_parts));
    const Range outs =
        ShareOf(params.w->n_out(), kOutBlock, static_cast<int>(worker_id % cut.out_parts),
                static_cast<int>(cut.out_parts));
    state_->RunPart(params, integers, 0, rows, outs, worker_id);
  });
}

void Linear::RunGrouped(const GroupedProducts& products) {
  if (products.items.empty()) return;
  const MatrixSize size = products.items.front().w->size();
  const LinearParams of_x = {.w = products.items.front().w,
                             .n_rows = products.n_x_rows,
                             .x_type = products.x_type,
                             .x = products.x,
                             .x_stride = size.n_in,
                             .y = products.y,
                             .y_stride = size.n_out,
                             .is_repeatable = true};
  const IntegerRows* integers = nullptr;
  for (const GroupedProducts::Item& item : products.items) {
    LinearParams of_item = of_x;
    of_item.w = item.w;
    CheckParams(of_item);
    KVL_DCHECK(item.w->n_out() == size.n_out && item.w->n_in() == size.n_in);
    if (integers == nullptr) integers = state_->MakeIntegers(of_item);
  }
  state_->RunBlocksOf(products, of_x, integers);
}

void Linear::RunOnWorker(const LinearParams& params, int worker_id) {
  CheckParams(params);
  const IntegerRows* integers = nullptr;
  if (state_->TakesIntegers(params)) {
    IntegerRows* const own = &state_->own_integers[worker_id];
    own->Resize(params.n_rows, params.w->n_in());
    own->Quantize(params, {0, params.n_rows}, state_->isa);
    integers = own;
  }
  state_->RunPart(params, integers, 0, {0, params.n_rows}, {0, params.w->n_out()}, worker_id);
}

}  // namespace kvlathe

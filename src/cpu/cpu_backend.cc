// Products, norms, gates, and queries and keys on their way to the cache; what concerns the cache
// itself is in cpu_backend_cache.cc.
#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "cpu/rotate_and_map.h"

namespace kvlathe {

CpuBackend::CpuBackend(ThreadPool* pool, Isa isa, CpuDevice* memory, const CpuResidents* residents)
    : pool_(pool),
      isa_(isa),
      memory_(memory),
      residents_(*residents),
      linear_(pool, isa),
      attention_(pool, isa, memory, residents),
      elementwise_(&GetElementwiseKernels(isa)) {}

void CpuBackend::set_deterministic(bool deterministic) {
  linear_.set_deterministic(deterministic);
  attention_.set_deterministic(deterministic);
}

void CpuBackend::Embed(const EmbedPlan& plan) {
  const CpuAccess own(*memory_);
  const int64_t n_dims = plan.n_dims;
  const PackedMatrix* const tied = residents_.At(plan.tied_words);
  const HostTable* const words = residents_.At(plan.words);
  const HostTable* const positions = residents_.At(plan.positions);
  auto* const out = own.As<float>(plan.out);
  ForRowShares(std::ssize(plan.tokens), [&](Range tokens) {
    std::vector<float> of_position(positions != nullptr ? n_dims : 0);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      float* const row = out + t * n_dims;
      const TokenPlace& token = plan.tokens[t];
      const int64_t word = token.token_id - plan.held_words.begin;
      if (word < 0 || token.token_id >= plan.held_words.end) {
        std::fill_n(row, n_dims, 0.0f);
      } else {
        tied != nullptr ? tied->UnpackRow(word, row) : words->read(word, row);
      }
      if (plan.scale != 1) {
        for (int64_t i = 0; i < n_dims; ++i) row[i] *= plan.scale;
      }
      if (positions == nullptr) continue;
      positions->read(token.position, of_position.data());
      for (int64_t i = 0; i < n_dims; ++i) row[i] += of_position[i];
    }
  });
}

void CpuBackend::SumOverRanks(const SumPlan& plan) {
  KVL_CHECK(ranks_ != nullptr);
  // Ranks that do not answer are asked once.
  if (!failure_.ok()) return;
  const CpuAccess own(*memory_);
  const std::span<float> x(own.As<float>(plan.x), static_cast<size_t>(plan.n_numbers));
  if (measures_waiting_) {
    const ScopedTimer timer(&report_.waiting_seconds);
    float nothing = 0;
    failure_ = ranks_->AllReduce({&nothing, 1});
  }
  {
    const ScopedTimer timer(&report_.message_seconds);
    if (failure_.ok()) failure_ = ranks_->AllReduce(x);
  }
  if (plan.added_to.is_null()) return;
  auto* const sum = own.As<float>(plan.added_to);
  ForRowShares((plan.n_numbers + 1023) / 1024, [&](Range rows) {
    const int64_t end = std::min(plan.n_numbers, rows.end * 1024);
    for (int64_t i = rows.begin * 1024; i < end; ++i) sum[i] += x[i];
  });
}

void CpuBackend::TakeRows(const TakeRowsPlan& plan) {
  const CpuAccess own(*memory_);
  std::byte* const rows = own.At(plan.rows);
  for (int64_t i = 0; i < std::ssize(plan.from); ++i) {
    std::memmove(rows + i * plan.row_bytes, rows + plan.from[i] * plan.row_bytes, plan.row_bytes);
  }
}

std::vector<float> CpuBackend::TakeChannel(const TakeChannelPlan& plan) {
  const CpuAccess own(*memory_);
  auto* const rows = own.As<float>(plan.rows);
  std::vector<float> taken;
  taken.reserve(plan.n_rows * plan.n_channels);
  for (int64_t i = 0; i < plan.n_rows; ++i) {
    float* channel = rows + i * plan.n_dims + plan.channel;
    for (int c = 0; c < plan.n_channels; ++c, channel += plan.channels_apart) {
      taken.push_back(std::exchange(*channel, 0.0f));
    }
  }
  return taken;
}

void CpuBackend::Project(const ProductPlan& plan) {
  const CpuAccess own(*memory_);
  linear_.Run({.w = residents_.At(plan.w),
               .n_rows = plan.n_rows,
               .x_type = plan.x_type,
               .x = own.At(plan.x),
               .x_stride = plan.x_stride,
               .bias = own.As<const float>(plan.bias),
               .y = own.At(plan.y),
               .y_stride = plan.y_stride,
               .y_type = plan.y_type,
               .accumulate = plan.accumulate});
}

void CpuBackend::ProjectHeads(const HeadProductsPlan& plan) {
  const CpuAccess own(*memory_);
  const int64_t element = SizeOf(plan.type);
  const int n_workers = pool_->n_workers();
  // Few tokens: a worker takes whole heads. Many: all heads of a share of the tokens.
  const bool by_head = plan.n_tokens < 16 * n_workers;
  pool_->Run([&](int worker_id) {
    const Range tokens =
        by_head ? Range{0, plan.n_tokens} : ShareOf(plan.n_tokens, 16, worker_id, n_workers);
    const int64_t n_heads = std::ssize(plan.heads);
    const Range heads = by_head ? ShareOf(n_heads, 1, worker_id, n_workers) : Range{0, n_heads};
    if (tokens.begin == tokens.end) return;
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      const HeadProductsPlan::Head& head = plan.heads[h];
      LinearParams params;
      params.w = residents_.At(head.w);
      params.n_rows = tokens.end - tokens.begin;
      params.x = own.At(head.x) + tokens.begin * plan.x_stride * element;
      params.x_stride = plan.x_stride;
      params.y = own.At(head.y) + tokens.begin * plan.y_stride * element;
      params.y_stride = plan.y_stride;
      params.x_type = params.y_type = plan.type;
      linear_.RunOnWorker(params, worker_id);
    }
  });
}

void CpuBackend::NormaliseRows(const NormPlan& plan, const CpuAccess& own, Range rows) const {
  const auto* const weight = own.As<const float>(plan.weight);
  const auto* const bias = own.As<const float>(plan.bias);
  // n groups of a row from `group` on, and those of the rows behind it where n is larger.
  const auto normalise = [&](int64_t row, int64_t group, int64_t n) {
    const int64_t first = row * plan.stride + group * plan.n_dims;
    const float* const x = own.As<const float>(plan.x) + first;
    std::byte* const out = own.At(plan.out) + first * SizeOf(plan.out_type);
    const int64_t of_group = plan.has_group_weights ? group * plan.n_dims : 0;
    const float* const w = weight == nullptr ? ones_.data() : weight + of_group;
    switch (plan.function) {
      case NormFunction::kRms:
        return elementwise_->rms_norm(x, w, plan.eps, n, plan.n_dims, plan.out_type, out);
      case NormFunction::kLayer:
        return elementwise_->layer_norm(x, w, bias == nullptr ? zeros_.data() : bias, plan.eps, n,
                                        plan.n_dims, plan.out_type, out);
      case NormFunction::kNone:
        return elementwise_->convert(x, n * plan.n_dims, plan.out_type, out);
    }
  };
  if (plan.has_group_weights) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t group = 0; group < plan.n_groups; ++group) normalise(row, group, 1);
    }
  } else if (plan.stride == plan.n_groups * plan.n_dims) {
    normalise(rows.begin, 0, (rows.end - rows.begin) * plan.n_groups);
  } else {
    for (int64_t row = rows.begin; row < rows.end; ++row) normalise(row, 0, plan.n_groups);
  }
  if (plan.added_to.is_null()) return;
  const auto* const added = own.As<const float>(plan.out);
  auto* const to = own.As<float>(plan.added_to);
  for (int64_t i = rows.begin * plan.stride; i < rows.end * plan.stride; ++i) to[i] += added[i];
}

void CpuBackend::Normalise(std::span<const NormPlan> plans) {
  const CpuAccess own(*memory_);
  for (const NormPlan& plan : plans) {
    if (std::ssize(ones_) >= plan.n_dims) continue;
    ones_.assign(plan.n_dims, 1.0f);
    zeros_.assign(plan.n_dims, 0.0f);
  }
  ForRowShares(plans.front().n_rows, [&](Range rows) {
    for (const NormPlan& plan : plans) NormaliseRows(plan, own, rows);
  });
}

void CpuBackend::Gate(const GatePlan& plan) {
  const CpuAccess own(*memory_);
  ForRowShares(plan.n_rows, [&](Range rows) {
    const float* const x = own.As<const float>(plan.x) + rows.begin * plan.n_in();
    std::byte* const out = own.At(plan.out) + rows.begin * plan.ffn_dim * SizeOf(plan.out_type);
    const int64_t n = rows.end - rows.begin;
    switch (plan.kind) {
      case GateKind::kSwiglu:
        return elementwise_->swiglu(x, n, plan.ffn_dim, plan.out_type, out);
      case GateKind::kGegluTanh:
        return elementwise_->geglu_tanh(x, n, plan.ffn_dim, plan.out_type, out);
      case GateKind::kGelu:
        return elementwise_->gelu(x, n * plan.ffn_dim, plan.out_type, out);
      case GateKind::kGeluTanh:
        return elementwise_->gelu_tanh(x, n * plan.ffn_dim, plan.out_type, out);
      case GateKind::kRelu2:
        return elementwise_->relu2(x, n * plan.ffn_dim, plan.out_type, out);
      case GateKind::kXielu:
        return elementwise_->xielu(plan.xielu, x, n * plan.ffn_dim, plan.out_type, out);
      case GateKind::kClampedSwiglu:
        return elementwise_->clamped_swiglu(x, n, plan.ffn_dim, plan.out_type, out);
    }
  });
}

void CpuBackend::Cap(const CapPlan& plan) {
  const CpuAccess own(*memory_);
  ForRowShares((plan.n_numbers + 1023) / 1024, [&](Range rows) {
    float* const x = own.As<float>(plan.x);
    const int64_t end = std::min(plan.n_numbers, rows.end * 1024);
    for (int64_t i = rows.begin * 1024; i < end; ++i) x[i] = plan.cap * std::tanh(x[i] / plan.cap);
  });
}

void CpuBackend::RotateAndMap(const RotatePlan& plan) {
  const CpuAccess own(*memory_);
  kvlathe::RotateAndMap(plan, own, residents_, {elementwise_, &linear_, pool_});
}

}  // namespace kvlathe

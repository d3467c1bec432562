// Products, norms, gates, and queries and keys on their way to the cache; what concerns the cache
// itself is in cpu_backend_cache.cc.
#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

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
  std::vector<float> channel(plan.n_rows);
  for (int64_t i = 0; i < plan.n_rows; ++i) {
    channel[i] = std::exchange(rows[i * plan.n_dims + plan.channel], 0.0f);
  }
  return channel;
}

void CpuBackend::Project(const ProductPlan& plan) {
  const CpuAccess own(*memory_);
  linear_.Run({.w = residents_.At(plan.w),
               .n_rows = plan.n_rows,
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
      params.y_type = plan.type;
      linear_.RunOnWorker(params, worker_id);
    }
  });
}

void CpuBackend::NormaliseRows(const NormPlan& plan, const CpuAccess& own, Range rows) const {
  const auto* const weight = own.As<const float>(plan.weight);
  const auto* const bias = own.As<const float>(plan.bias);
  const auto normalise = [&](int64_t row, int64_t n) {
    const float* const x = own.As<const float>(plan.x) + row * plan.stride;
    std::byte* const out = own.At(plan.out) + row * plan.stride * SizeOf(plan.out_type);
    if (bias == nullptr) {
      elementwise_->rms_norm(x, weight, plan.eps, n, plan.n_dims, plan.out_type, out);
    } else {
      elementwise_->layer_norm(x, weight, bias, plan.eps, n, plan.n_dims, plan.out_type, out);
    }
  };
  if (plan.stride == plan.n_groups * plan.n_dims) {
    normalise(rows.begin, (rows.end - rows.begin) * plan.n_groups);
  } else {
    for (int64_t row = rows.begin; row < rows.end; ++row) normalise(row, plan.n_groups);
  }
  if (plan.added_to.is_null()) return;
  const auto* const added = own.As<const float>(plan.out);
  auto* const to = own.As<float>(plan.added_to);
  for (int64_t i = rows.begin * plan.stride; i < rows.end * plan.stride; ++i) to[i] += added[i];
}

void CpuBackend::Normalise(std::span<const NormPlan> plans) {
  const CpuAccess own(*memory_);
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
    }
  });
}

CpuBackend::RotationAt CpuBackend::Resolve(const RotatePlan& plan, const CpuAccess& own) const {
  RotationAt turn = {plan, own.As<const float>(plan.cos), own.As<const float>(plan.sin), {}};
  turn.heads.reserve(plan.heads.size());
  for (const HeadTurn& head : plan.heads) {
    turn.heads.push_back({.plan = head,
                          .q = own.As<const float>(head.q),
                          .k = own.As<const float>(head.k),
                          .turned_q = own.At(head.turned_q),
                          .turned_k = own.At(head.turned_k.first),
                          .key_offset = own.As<const float>(head.key_offset),
                          .query_map = residents_.At(head.query_map),
                          .key_map = residents_.At(head.key_map),
                          .mapped_q = own.At(head.mapped_q),
                          .joined_k = own.At(head.joined_k.first),
                          .mapped_k = own.At(head.mapped_k)});
  }
  return turn;
}

void CpuBackend::RotateAndMap(const RotatePlan& plan) {
  const CpuAccess own(*memory_);
  const RotationAt turn = Resolve(plan, own);
  const int64_t n_tokens = std::ssize(plan.tokens), n_heads = std::ssize(plan.heads);
  const int n_workers = pool_->n_workers(), n_joined = plan.keys_per_map;
  // Few tokens: a worker takes whole KV heads. Many: all heads of a share of the tokens.
  const bool by_head = n_tokens < 16 * n_workers;
  pool_->Run([&](int worker_id) {
    const Range tokens = by_head ? Range{0, n_tokens} : ShareOf(n_tokens, 16, worker_id, n_workers);
    // A map needs the rows of all heads that it joins.
    const Range heads =
        by_head ? ShareOf(n_heads, n_joined, worker_id, n_workers) : Range{0, n_heads};
    if (tokens.begin == tokens.end) return;
    for (int64_t first = heads.begin; first < heads.end; first += n_joined) {
      const auto joined = std::span(turn.heads).subspan(first, n_joined);
      for (const HeadTurnAt& head : joined) TurnRows(turn, head, tokens);
      MapHeads(turn, joined, tokens, worker_id);
    }
  });
}

void CpuBackend::TurnRow(const RotationAt& turn, const float* row, int position, DType out_type,
                         void* out) const {
  const RotatePlan& plan = turn.plan;
  const int64_t angles = int64_t{position} * (plan.rope_dim / 2);
  elementwise_->rope(row, turn.cos + angles, turn.sin + angles, plan.rope_dim, plan.head_dim,
                     out_type, out);
  if (plan.zeroed_channel < 0) return;
  const int64_t element = SizeOf(out_type);
  std::memset(static_cast<std::byte*>(out) + plan.zeroed_channel * element, 0,
              static_cast<size_t>(element));
}

void CpuBackend::TurnKey(const RotationAt& turn, const HeadTurnAt& head, int64_t token_idx,
                         float* centred, std::byte* out) const {
  const RotatePlan& plan = turn.plan;
  const float* const row = head.k + token_idx * plan.stride;
  const int position = plan.tokens[token_idx].position;
  const bool turns = position < plan.first_unturned;
  const bool all_turn = plan.first_unturned == RotatePlan::kAllTurn;
  if (head.key_offset == nullptr || turns != all_turn) {
    if (!turns) return elementwise_->convert(row, plan.head_dim, plan.out_type, out);
    return TurnRow(turn, row, position, plan.out_type, out);
  }
  // The offset leaves before the row is rounded.
  if (turns) {
    TurnRow(turn, row, position, DType::kF32, centred);
  } else {
    std::copy_n(row, plan.head_dim, centred);
  }
  for (int i = 0; i < plan.head_dim; ++i) centred[i] -= head.key_offset[i];
  elementwise_->convert(centred, plan.head_dim, plan.out_type, out);
}

void CpuBackend::TurnRows(const RotationAt& turn, const HeadTurnAt& head, Range tokens) const {
  const RotatePlan& plan = turn.plan;
  const int64_t d = plan.head_dim, element = SizeOf(plan.out_type);
  std::vector<float> centred(d);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    for (int h = 0; h < plan.gqa_group; ++h) {
      std::byte* const row =
          head.turned_q +
          (t * head.plan.turned_q_stride + int64_t{h} * head.plan.turned_q_width) * element;
      if (head.plan.turned_q_width > d) std::memset(row, 0, head.plan.turned_q_width * element);
      TurnRow(turn, head.q + t * plan.stride + h * d, plan.tokens[t].position, plan.out_type,
              row + head.plan.turned_q_place * element);
    }
    TurnKey(turn, head, t, centred.data(), head.turned_k + t * head.plan.turned_k.stride * element);
  }
}

void CpuBackend::MapHeads(const RotationAt& turn, std::span<const HeadTurnAt> heads, Range tokens,
                          int worker_id) {
  const RotatePlan& plan = turn.plan;
  if (heads.front().key_map == nullptr) return;
  const auto first = plan.tokens.begin() + tokens.begin, end = plan.tokens.begin() + tokens.end;
  for (auto token = first; token != end;) {
    const auto mapped = std::ranges::find(token, end, false, &TokenPlace::meets_whole_keys);
    token = std::ranges::find(mapped, end, true, &TokenPlace::meets_whole_keys);
    if (mapped == token) return;
    const Range range = {mapped - plan.tokens.begin(), token - plan.tokens.begin()};
    for (const HeadTurnAt& head : heads) MapRows(turn, head, range, worker_id);
  }
}

// Rows whose neighbours are equally far apart are one product: all of them where those of a token
// lie as far from each other as from the next token's, else those of one query head.
void CpuBackend::MapQueries(const RotationAt& turn, const HeadTurnAt& head, Range tokens,
                            int worker_id) {
  const RotatePlan& plan = turn.plan;
  const HeadTurn& at = head.plan;
  const int64_t element = SizeOf(plan.out_type), group = plan.gqa_group;
  const int64_t n_tokens = tokens.end - tokens.begin, rank = head.query_map->n_out();
  const bool is_dense = n_tokens == 1 || (at.turned_q_stride == group * at.turned_q_width &&
                                          at.mapped_q_stride == group * rank);
  LinearParams params;
  params.y_type = plan.out_type;
  params.w = head.query_map;
  params.n_rows = is_dense ? n_tokens * group : n_tokens;
  params.x_stride = is_dense ? at.turned_q_width : at.turned_q_stride;
  params.y_stride = is_dense ? rank : at.mapped_q_stride;
  for (int64_t h = 0; h < (is_dense ? 1 : group); ++h) {
    params.x =
        head.turned_q +
        (tokens.begin * at.turned_q_stride + h * at.turned_q_width + at.turned_q_place) * element;
    params.y = head.mapped_q + (tokens.begin * at.mapped_q_stride + h * rank) * element;
    linear_.RunOnWorker(params, worker_id);
  }
}

void CpuBackend::MapRows(const RotationAt& turn, const HeadTurnAt& head, Range tokens,
                         int worker_id) {
  const RotatePlan& plan = turn.plan;
  const int64_t element = SizeOf(plan.out_type);
  LinearParams params;
  params.y_type = plan.out_type;
  if (head.query_map != nullptr) MapQueries(turn, head, tokens, worker_id);
  if (head.key_map == nullptr) return;
  params.w = head.key_map;
  params.n_rows = tokens.end - tokens.begin;
  params.x = head.joined_k + tokens.begin * head.plan.joined_k.stride * element;
  params.x_stride = head.plan.joined_k.stride;
  params.y_stride = head.key_map->n_out();
  params.y = head.mapped_k + tokens.begin * params.y_stride * element;
  linear_.RunOnWorker(params, worker_id);
}

}  // namespace kvlathe

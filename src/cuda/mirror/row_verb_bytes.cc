#include <algorithm>

#include "cuda/mirror/list_bytes.h"

namespace kvlathe {

void ListBytes(const EmbedPlan& plan, VerbBytes* bytes) {
  bytes->Uses(plan.tied_words);
  bytes->WritesRows(plan.out, {std::ssize(plan.tokens), plan.n_dims, plan.n_dims});
}

void ListBytes(const TakeRowsPlan& plan, VerbBytes* bytes) {
  if (plan.from.empty()) return;
  const int64_t last = std::max(std::ranges::max(plan.from), std::ssize(plan.from) - 1);
  bytes->Changes(plan.rows, (last + 1) * plan.row_bytes);
}

void ListBytes(const TakeChannelPlan& plan, VerbBytes* bytes) {
  bytes->Changes(plan.rows, plan.n_rows * plan.n_dims * 4);
}

void ListBytes(const ProductPlan& plan, VerbBytes* bytes) {
  const CudaMatrix& w = *bytes->Uses(plan.w);
  bytes->ReadsRows(plan.x, {plan.n_rows, plan.x_stride, w.n_in, SizeOf(plan.x_type)});
  bytes->Reads(plan.bias, w.n_out * 4);
  const VerbBytes::Rows y = {plan.n_rows, plan.y_stride, w.n_out, SizeOf(plan.y_type)};
  if (plan.accumulate) bytes->ReadsRows(plan.y, y);
  bytes->WritesRows(plan.y, y);
}

void ListBytes(const HeadProductsPlan& plan, VerbBytes* bytes) {
  const int64_t element = SizeOf(plan.type);
  for (const HeadProductsPlan::Head& head : plan.heads) {
    const CudaMatrix& w = *bytes->Uses(head.w);
    bytes->ReadsRows(head.x, {plan.n_tokens, plan.x_stride, w.n_in, element});
    bytes->WritesRows(head.y, {plan.n_tokens, plan.y_stride, w.n_out, element});
  }
}

void ListBytes(std::span<const NormPlan> plans, VerbBytes* bytes) {
  for (const NormPlan& plan : plans) {
    const int64_t width = plan.n_groups * plan.n_dims;
    bytes->ReadsRows(plan.x, {plan.n_rows, plan.stride, width});
    bytes->Reads(plan.weight, (plan.has_group_weights ? width : plan.n_dims) * 4);
    bytes->Reads(plan.bias, plan.n_dims * 4);
    bytes->WritesRows(plan.out, {plan.n_rows, plan.stride, width, SizeOf(plan.out_type)});
    if (plan.added_to.is_null()) continue;
    // Sums go over whole rows.
    bytes->Reads(plan.out, plan.n_rows * plan.stride * 4);
    bytes->Changes(plan.added_to, plan.n_rows * plan.stride * 4);
  }
}

void ListBytes(const GatePlan& plan, VerbBytes* bytes) {
  bytes->Reads(plan.x, plan.n_rows * plan.n_in() * 4);
  bytes->Writes(plan.out, plan.n_rows * plan.ffn_dim * SizeOf(plan.out_type));
}

void ListBytes(const CapPlan& plan, VerbBytes* bytes) {
  bytes->Changes(plan.x, plan.n_numbers * 4);
}

void ListBytes(const RoutePlan& plan, VerbBytes* bytes) {
  const CudaMatrix& router = *bytes->Uses(plan.router);
  bytes->Reads(plan.x, plan.n_rows * router.n_in * 4);
  bytes->Reads(plan.bias, int64_t{plan.n_experts} * 4);
  bytes->Reads(plan.choice_bias, int64_t{plan.n_experts} * 4);
}

void ListBytes(const GatherRowsPlan& plan, VerbBytes* bytes) {
  if (plan.from.empty()) return;
  bytes->Reads(plan.x, (std::ranges::max(plan.from) + 1) * plan.row_bytes);
  bytes->Writes(plan.to, std::ssize(plan.from) * plan.row_bytes);
}

void ListBytes(const ExpertProductsPlan& plan, VerbBytes* bytes) {
  bytes->Reads(plan.x, plan.n_x_rows * plan.n_in * SizeOf(plan.x_type));
  for (const ExpertProductsPlan::Item& item : plan.items) {
    bytes->Uses(item.w);
    bytes->Reads(item.bias, plan.n_out * 4);
    bytes->Writes(plan.y + item.first_y * plan.n_out * 4, item.n_rows * plan.n_out * 4);
  }
}

void ListBytes(const WeightedRowsPlan& plan, VerbBytes* bytes) {
  bytes->Reads(plan.x, plan.n_x_rows * plan.n_dims * 4);
  const int64_t n_bytes = plan.n_rows * plan.n_dims * 4;
  plan.accumulate ? bytes->Changes(plan.y, n_bytes) : bytes->Writes(plan.y, n_bytes);
}

void ListBytes(const RotatePlan& plan, VerbBytes* bytes) {
  const int64_t n = std::ssize(plan.tokens), element = SizeOf(plan.out_type);
  const int64_t d = plan.head_dim, angles = int64_t{plan.rope_dim} / 2 * 4;
  for (const TokenPlace& token : plan.tokens) {
    for (const ObjectPlace& table : {plan.cos, plan.sin, plan.key_cos, plan.key_sin}) {
      if (!table.is_null()) bytes->Reads(table + token.position * angles, angles);
    }
  }
  bytes->Reads(plan.query_weights, d * 4);
  for (const HeadTurn& head : plan.heads) {
    bytes->ReadsRows(head.q, {n, plan.stride, plan.gqa_group * d});
    bytes->ReadsRows(head.k, {n, plan.stride, d});
    bytes->WritesRows(head.turned_q, {n, head.turned_q_stride,
                                      int64_t{plan.gqa_group} * head.turned_q_width, element});
    bytes->WritesRows(head.turned_k.first, {n, head.turned_k.stride, d, element});
    bytes->Reads(head.key_offset, d * 4);
    bytes->Reads(head.turning_mean, d * 4);
    // Tokens that meet whole keys are not mapped, so that their rows stay as they are.
    if (const CudaMatrix* const map = bytes->Uses(head.query_map); map != nullptr) {
      bytes->Changes(
          head.mapped_q,
          VerbBytes::Rows{n, head.mapped_q_stride, plan.gqa_group * map->n_out, element}.n_bytes());
    }
    if (const CudaMatrix* const map = bytes->Uses(head.key_map); map != nullptr) {
      bytes->ReadsRows(head.joined_k.first, {n, head.joined_k.stride, map->n_in, element});
      bytes->ReadsRows(head.added_v.first, {n, head.added_v.stride, map->n_out, element});
      bytes->Changes(head.mapped_k, n * map->n_out * element);
    }
  }
}

void ListBytes(const SumPlan& plan, VerbBytes* bytes) {
  bytes->Changes(plan.x, plan.n_numbers * 4);
  bytes->Changes(plan.added_to, plan.n_numbers * 4);
}

}  // namespace kvlathe

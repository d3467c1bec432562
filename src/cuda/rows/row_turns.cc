// RotateAndMap of RowVerbs.
#include <algorithm>
#include <utility>

#include "cuda/kernels/rows/rotate.h"
#include "cuda/rows/row_verbs.h"

namespace kvlathe {
namespace {

// Ranges of tokens that do not meet whole keys.
std::vector<Range> MappedTokens(std::span<const TokenPlace> tokens) {
  std::vector<Range> ranges;
  for (auto token = tokens.begin(); token != tokens.end();) {
    const auto first = std::ranges::find(token, tokens.end(), false, &TokenPlace::meets_whole_keys);
    token = std::ranges::find(first, tokens.end(), true, &TokenPlace::meets_whole_keys);
    if (first != token) ranges.push_back({first - tokens.begin(), token - tokens.begin()});
  }
  return ranges;
}

}  // namespace

void RowVerbs::TurnRows(const RotatePlan& plan) {
  std::vector<cuda::TurnedHead> heads;
  for (const HeadTurn& head : plan.heads) {
    heads.push_back({.q = device_.As<const float>(head.q),
                     .k = device_.As<const float>(head.k),
                     .turned_q = device_.At(head.turned_q),
                     .turned_k = device_.At(head.turned_k.first),
                     .key_offset = device_.As<const float>(head.key_offset),
                     .turning_mean = device_.As<const float>(head.turning_mean),
                     .turned_q_stride = head.turned_q_stride,
                     .turned_k_stride = head.turned_k.stride,
                     .turned_q_width = head.turned_q_width,
                     .turned_q_place = head.turned_q_place});
  }
  cuda::TurnParams params = {.n_tokens = static_cast<int>(plan.tokens.size()),
                             .gqa_group = plan.gqa_group,
                             .head_dim = plan.head_dim,
                             .stride = plan.stride,
                             .cos = device_.As<const float>(plan.cos),
                             .sin = device_.As<const float>(plan.sin),
                             .key_cos = device_.As<const float>(plan.key_cos),
                             .key_sin = device_.As<const float>(plan.key_sin),
                             .query_weights = device_.As<const float>(plan.query_weights),
                             .rope_dim = plan.rope_dim,
                             .first_unturned = plan.first_unturned,
                             .all_turn = plan.first_unturned == RotatePlan::kAllTurn,
                             .zeroes_first_query_only = plan.zeroes_first_query_only,
                             .first_less_mean = plan.first_less_mean,
                             .first_less_offset = plan.first_less_offset,
                             .zeroed_channel = plan.zeroed_channel,
                             .out_type = plan.out_type};
  std::vector<int32_t> positions;
  for (const TokenPlace& token : plan.tokens) positions.push_back(token.position);
  if (params.n_tokens <= cuda::kPositionsOfTurn) {
    std::ranges::copy(positions, params.few_positions);
  } else {
    params.positions = stream_.Send(std::span<const int32_t>(positions));
    if (params.positions == nullptr) return;
  }
  cuda::TurnRows(stream_.get(), params, heads);
}

// Query rows whose neighbours are equally far apart are one product: all of them where those of a
// token lie as far from each other as from the next token's, else those of one query head.
void RowVerbs::AddQueryMaps(const RotatePlan& plan, const HeadTurn& head, Range tokens,
                            std::vector<PlacedProduct>* products) const {
  const int64_t element = SizeOf(plan.out_type), group = plan.gqa_group;
  const int64_t n_tokens = tokens.end - tokens.begin, rank = residents_.At(head.query_map)->n_out;
  const bool is_dense = n_tokens == 1 || (head.turned_q_stride == group * head.turned_q_width &&
                                          head.mapped_q_stride == group * rank);
  for (int64_t h = 0; h < (is_dense ? 1 : group); ++h) {
    const int64_t from = tokens.begin * head.turned_q_stride + h * head.turned_q_width;
    const int64_t to = tokens.begin * head.mapped_q_stride + h * rank;
    products->push_back(Resolve({.w = head.query_map,
                                 .n_rows = is_dense ? n_tokens * group : n_tokens,
                                 .x = head.turned_q + (from + head.turned_q_place) * element,
                                 .x_stride = is_dense ? head.turned_q_width : head.turned_q_stride,
                                 .x_type = plan.out_type,
                                 .y = head.mapped_q + to * element,
                                 .y_stride = is_dense ? rank : head.mapped_q_stride,
                                 .y_type = plan.out_type}));
  }
}

// Where heads share a map of keys, the first has it, and without it none of them maps anything.
void RowVerbs::MapRows(const RotatePlan& plan) {
  const int64_t element = SizeOf(plan.out_type);
  std::vector<PlacedProduct> products;
  std::vector<cuda::AddedRows> added;
  for (const Range& tokens : MappedTokens(plan.tokens)) {
    const int64_t n_tokens = tokens.end - tokens.begin;
    for (int64_t h = 0; h < std::ssize(plan.heads); ++h) {
      const HeadTurn& head = plan.heads[h];
      if (plan.heads[h / plan.keys_per_map * plan.keys_per_map].key_map.is_null()) continue;
      if (!head.query_map.is_null()) AddQueryMaps(plan, head, tokens, &products);
      if (head.key_map.is_null()) continue;
      const int64_t rank = residents_.At(head.key_map)->n_out;
      const ObjectPlace mapped_k = head.mapped_k + tokens.begin * rank * element;
      products.push_back(
          Resolve({.w = head.key_map,
                   .n_rows = n_tokens,
                   .x = head.joined_k.first + tokens.begin * head.joined_k.stride * element,
                   .x_stride = head.joined_k.stride,
                   .x_type = plan.out_type,
                   .y = mapped_k,
                   .y_stride = rank,
                   .y_type = plan.out_type}));
      if (head.added_v.first.is_null()) continue;
      added.push_back(
          {.k = device_.At(mapped_k),
           .v = device_.At(head.added_v.first + tokens.begin * head.added_v.stride * element),
           .v_stride = head.added_v.stride,
           .n_rows = static_cast<int>(n_tokens),
           .width = static_cast<int>(rank)});
    }
  }
  MultiplyHeads(products);
  cuda::AddRows(stream_.get(), plan.out_type, added);
}

void RowVerbs::RotateAndMap(const RotatePlan& plan) {
  if (plan.tokens.empty()) return;
  TurnRows(plan);
  MapRows(plan);
}

}  // namespace kvlathe

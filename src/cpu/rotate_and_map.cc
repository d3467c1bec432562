#include "cpu/rotate_and_map.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvlathe {
namespace {

// A RotatePlan with addresses.
struct HeadTurnAt {
  const HeadTurn& plan;
  const float *q, *k;
  std::byte *turned_q, *turned_k;
  const float *key_offset, *turning_mean;
  const PackedMatrix *query_map, *key_map;
  std::byte* mapped_q;
  const std::byte* joined_k;
  std::byte* mapped_k;
  const std::byte* added_v;
};
struct PlacedRotation {
  const RotatePlan& plan;
  const float *cos, *sin, *key_cos, *key_sin, *query_weights;
  std::vector<HeadTurnAt> heads;
};

PlacedRotation Resolve(const RotatePlan& plan, const CpuAccess& own,
                       const CpuResidents& residents) {
  PlacedRotation turn = {plan,
                         own.As<const float>(plan.cos),
                         own.As<const float>(plan.sin),
                         own.As<const float>(plan.key_cos),
                         own.As<const float>(plan.key_sin),
                         own.As<const float>(plan.query_weights),
                         {}};
  turn.heads.reserve(plan.heads.size());
  for (const HeadTurn& head : plan.heads) {
    turn.heads.push_back({.plan = head,
                          .q = own.As<const float>(head.q),
                          .k = own.As<const float>(head.k),
                          .turned_q = own.At(head.turned_q),
                          .turned_k = own.At(head.turned_k.first),
                          .key_offset = own.As<const float>(head.key_offset),
                          .turning_mean = own.As<const float>(head.turning_mean),
                          .query_map = residents.At(head.query_map),
                          .key_map = residents.At(head.key_map),
                          .mapped_q = own.At(head.mapped_q),
                          .joined_k = own.At(head.joined_k.first),
                          .mapped_k = own.At(head.mapped_k),
                          .added_v = own.At(head.added_v.first)});
  }
  return turn;
}

class Rotation {
 public:
  Rotation(PlacedRotation turn, const RotateKernels& kernels)
      : turn_(std::move(turn)),
        elementwise_(*kernels.elementwise),
        linear_(*kernels.linear),
        pool_(*kernels.pool) {}

  void Run();

 private:
  // By angles of `cos` and `sin`, [n_positions, rope_dim / 2].
  void TurnRow(const float* cos, const float* sin, const float* row, int position, DType out_type,
               void* out) const;
  // `weighed` has room for a row.
  void TurnQuery(const float* row, int position, float* weighed, std::byte* out) const;
  void ZeroChannel(DType type, void* row) const;
  void TurnKey(const HeadTurnAt& head, int64_t token_idx, float* centred, std::byte* out) const;
  void TurnRows(const HeadTurnAt& head, Range tokens) const;
  void MapQueries(const HeadTurnAt& head, Range tokens, int worker_id);
  void MapRows(const HeadTurnAt& head, Range tokens, int worker_id);
  // Adds the values of tokens to their mapped keys.
  void AddValues(const HeadTurnAt& head, Range tokens) const;
  // Maps the tokens that do not meet whole keys, for heads that share a map.
  void MapHeads(std::span<const HeadTurnAt> heads, Range tokens, int worker_id);

  PlacedRotation turn_;
  const ElementwiseKernels& elementwise_;
  Linear& linear_;
  ThreadPool& pool_;
};

void Rotation::Run() {
  const RotatePlan& plan = turn_.plan;
  const int64_t n_tokens = std::ssize(plan.tokens), n_heads = std::ssize(plan.heads);
  const int n_workers = pool_.n_workers(), n_joined = plan.keys_per_map;
  // Few tokens: a worker takes whole KV heads. Many: all heads of a share of the tokens.
  const bool by_head = n_tokens < 16 * n_workers;
  pool_.Run([&](int worker_id) {
    const Range tokens = by_head ? Range{0, n_tokens} : ShareOf(n_tokens, 16, worker_id, n_workers);
    // A map needs the rows of all heads that it joins.
    const Range heads =
        by_head ? ShareOf(n_heads, n_joined, worker_id, n_workers) : Range{0, n_heads};
    if (tokens.begin == tokens.end) return;
    for (int64_t first = heads.begin; first < heads.end; first += n_joined) {
      const auto joined = std::span(turn_.heads).subspan(first, n_joined);
      for (const HeadTurnAt& head : joined) TurnRows(head, tokens);
      MapHeads(joined, tokens, worker_id);
    }
  });
}

void Rotation::TurnRow(const float* cos, const float* sin, const float* row, int position,
                       DType out_type, void* out) const {
  const RotatePlan& plan = turn_.plan;
  const int64_t angles = int64_t{position} * (plan.rope_dim / 2);
  elementwise_.rope(row, cos + angles, sin + angles, plan.rope_dim, plan.head_dim, out_type, out);
  if (!plan.zeroes_first_query_only) ZeroChannel(out_type, out);
}

void Rotation::TurnQuery(const float* row, int position, float* weighed, std::byte* out) const {
  const RotatePlan& plan = turn_.plan;
  if (turn_.query_weights == nullptr) {
    return TurnRow(turn_.cos, turn_.sin, row, position, plan.out_type, out);
  }
  TurnRow(turn_.cos, turn_.sin, row, position, DType::kF32, weighed);
  for (int i = 0; i < plan.head_dim; ++i) weighed[i] *= turn_.query_weights[i];
  elementwise_.convert(weighed, plan.head_dim, plan.out_type, out);
}

void Rotation::ZeroChannel(DType type, void* row) const {
  if (turn_.plan.zeroed_channel < 0) return;
  const int64_t element = SizeOf(type);
  std::memset(static_cast<std::byte*>(row) + turn_.plan.zeroed_channel * element, 0,
              static_cast<size_t>(element));
}

void Rotation::TurnKey(const HeadTurnAt& head, int64_t token_idx, float* centred,
                       std::byte* out) const {
  const RotatePlan& plan = turn_.plan;
  const float* row = head.k + token_idx * plan.stride;
  const int position = plan.tokens[token_idx].position;
  if (head.turning_mean != nullptr && position >= plan.first_less_mean) {
    float* const less_mean = centred + plan.head_dim;
    for (int i = 0; i < plan.head_dim; ++i) less_mean[i] = row[i] - head.turning_mean[i];
    row = less_mean;
  }
  const bool turns = position < plan.first_unturned;
  const bool all_turn = plan.first_unturned == RotatePlan::kAllTurn;
  const bool keeps_offset = turns != all_turn || position < plan.first_less_offset;
  if (head.key_offset == nullptr || keeps_offset) {
    if (!turns) return elementwise_.convert(row, plan.head_dim, plan.out_type, out);
    return TurnRow(turn_.key_cos, turn_.key_sin, row, position, plan.out_type, out);
  }
  // The offset leaves before the row is rounded.
  if (turns) {
    TurnRow(turn_.key_cos, turn_.key_sin, row, position, DType::kF32, centred);
  } else {
    std::copy_n(row, plan.head_dim, centred);
  }
  for (int i = 0; i < plan.head_dim; ++i) centred[i] -= head.key_offset[i];
  elementwise_.convert(centred, plan.head_dim, plan.out_type, out);
}

void Rotation::TurnRows(const HeadTurnAt& head, Range tokens) const {
  const RotatePlan& plan = turn_.plan;
  const int64_t d = plan.head_dim, element = SizeOf(plan.out_type);
  std::vector<float> centred(2 * d);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    for (int h = 0; h < plan.gqa_group; ++h) {
      std::byte* const row =
          head.turned_q +
          (t * head.plan.turned_q_stride + int64_t{h} * head.plan.turned_q_width) * element;
      if (head.plan.turned_q_width > d) std::memset(row, 0, head.plan.turned_q_width * element);
      std::byte* const query = row + head.plan.turned_q_place * element;
      TurnQuery(head.q + t * plan.stride + h * d, plan.tokens[t].position, centred.data(), query);
      if (h == 0 && plan.zeroes_first_query_only) ZeroChannel(plan.out_type, query);
    }
    TurnKey(head, t, centred.data(), head.turned_k + t * head.plan.turned_k.stride * element);
  }
}

void Rotation::MapHeads(std::span<const HeadTurnAt> heads, Range tokens, int worker_id) {
  const RotatePlan& plan = turn_.plan;
  if (heads.front().key_map == nullptr) return;
  const auto first = plan.tokens.begin() + tokens.begin, end = plan.tokens.begin() + tokens.end;
  for (auto token = first; token != end;) {
    const auto mapped = std::ranges::find(token, end, false, &TokenPlace::meets_whole_keys);
    token = std::ranges::find(mapped, end, true, &TokenPlace::meets_whole_keys);
    if (mapped == token) return;
    const Range range = {mapped - plan.tokens.begin(), token - plan.tokens.begin()};
    for (const HeadTurnAt& head : heads) MapRows(head, range, worker_id);
  }
}

// Rows whose neighbours are equally far apart are one product: all of them where those of a token
// lie as far from each other as from the next token's, else those of one query head.
void Rotation::MapQueries(const HeadTurnAt& head, Range tokens, int worker_id) {
  const RotatePlan& plan = turn_.plan;
  const HeadTurn& at = head.plan;
  const int64_t element = SizeOf(plan.out_type), group = plan.gqa_group;
  const int64_t n_tokens = tokens.end - tokens.begin, rank = head.query_map->n_out();
  const bool is_dense = n_tokens == 1 || (at.turned_q_stride == group * at.turned_q_width &&
                                          at.mapped_q_stride == group * rank);
  LinearParams params;
  params.x_type = params.y_type = plan.out_type;
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

void Rotation::MapRows(const HeadTurnAt& head, Range tokens, int worker_id) {
  const RotatePlan& plan = turn_.plan;
  const int64_t element = SizeOf(plan.out_type);
  LinearParams params;
  params.x_type = params.y_type = plan.out_type;
  if (head.query_map != nullptr) MapQueries(head, tokens, worker_id);
  if (head.key_map == nullptr) return;
  params.w = head.key_map;
  params.n_rows = tokens.end - tokens.begin;
  params.x = head.joined_k + tokens.begin * head.plan.joined_k.stride * element;
  params.x_stride = head.plan.joined_k.stride;
  params.y_stride = head.key_map->n_out();
  params.y = head.mapped_k + tokens.begin * params.y_stride * element;
  linear_.RunOnWorker(params, worker_id);
  if (head.added_v != nullptr) AddValues(head, tokens);
}

void Rotation::AddValues(const HeadTurnAt& head, Range tokens) const {
  const DType type = turn_.plan.out_type;
  const int64_t width = head.key_map->n_out(), element = SizeOf(type);
  std::vector<float> keys(width), values(width);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    std::byte* const row = head.mapped_k + t * width * element;
    ConvertToFloat(type, row, width, keys.data());
    ConvertToFloat(type, head.added_v + t * head.plan.added_v.stride * element, width,
                   values.data());
    for (int64_t i = 0; i < width; ++i) keys[i] += values[i];
    elementwise_.convert(keys.data(), width, type, row);
  }
}

}  // namespace

void RotateAndMap(const RotatePlan& plan, const CpuAccess& own, const CpuResidents& residents,
                  const RotateKernels& kernels) {
  Rotation(Resolve(plan, own, residents), kernels).Run();
}

}  // namespace kvlathe

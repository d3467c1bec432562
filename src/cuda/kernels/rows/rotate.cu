// Compiled without contraction, so that rows have the bits that two roundings give.
#include <algorithm>

#include "cuda/kernels/rows/rotate.h"
#include "cuda/kernels/rows/row_access.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kTurnThreads = 128;

// How many heads, and rows that are added, travel with a launch.
constexpr int kHeadsOfTurn = 32;
constexpr int kItemsOfAddRows = 64;

struct TurnHeadsParams {
  TurnParams turn;
  TurnedHead heads[kHeadsOfTurn];
};
struct AddRowsParams {
  AddedRows items[kItemsOfAddRows];
  DType type = DType::kF32;
};
static_assert(sizeof(TurnHeadsParams) <= 4096 && sizeof(AddRowsParams) <= 4096);

// Angles of a position: cos and sin [rope_dim / 2], and the channel of a row that is zero then.
struct TurnAt {
  const float *cos, *sin;
  int zeroed_channel;  // -1: none
};

// Channel c of a row that turns, whose numbers x(i) are.
template <typename F>
KVL_DEVICE float TurnedChannel(const TurnParams& p, const TurnAt& at, int c, const F& x) {
  if (c == at.zeroed_channel) return 0;
  const int half = p.rope_dim / 2;
  if (c < half) return x(c) * at.cos[c] - x(c + half) * at.sin[c];
  if (c < 2 * half) return x(c) * at.cos[c - half] + x(c - half) * at.sin[c - half];
  return x(c);
}

KVL_DEVICE void StoreNumber(float y, DType type, void* to, int64_t idx) {
  StoreRounded(Floats<1>{{y}}, type, to, idx);
}

KVL_DEVICE void TurnQueries(const TurnParams& p, const TurnedHead& head, int token, int position) {
  const int64_t angles = int64_t{position} * (p.rope_dim / 2);
  const int width = head.turned_q_width, n = p.gqa_group * width;
  for (int i = ThreadIdx(); i < n; i += kTurnThreads) {
    const int h = i / width, c = i % width - head.turned_q_place;
    const bool zeroes = h == 0 || !p.zeroes_first_query_only;
    const TurnAt at = {p.cos + angles, p.sin + angles, zeroes ? p.zeroed_channel : -1};
    const float* const q = head.q + token * p.stride + int64_t{h} * p.head_dim;
    const bool is_query = c >= 0 && c < p.head_dim;
    float y = is_query ? TurnedChannel(p, at, c, [&](int j) { return q[j]; }) : 0.0f;
    if (is_query && p.query_weights != nullptr) y *= p.query_weights[c];
    StoreNumber(y, p.out_type, head.turned_q, token * head.turned_q_stride + i);
  }
}

KVL_DEVICE void TurnKey(const TurnParams& p, const TurnedHead& head, int token, int position) {
  const int64_t angles = int64_t{position} * (p.rope_dim / 2);
  const TurnAt at = {p.key_cos + angles, p.key_sin + angles,
                     p.zeroes_first_query_only ? -1 : p.zeroed_channel};
  const float* const k = head.k + token * p.stride;
  const bool loses_mean = head.turning_mean != nullptr && position >= p.first_less_mean;
  const bool turns = position < p.first_unturned;
  const bool keeps_offset = turns != p.all_turn || position < p.first_less_offset;
  const bool loses_offset = head.key_offset != nullptr && !keeps_offset;
  const auto x = [&](int j) { return loses_mean ? k[j] - head.turning_mean[j] : k[j]; };
  for (int c = ThreadIdx(); c < p.head_dim; c += kTurnThreads) {
    float y = turns ? TurnedChannel(p, at, c, x) : x(c);
    if (loses_offset) y -= head.key_offset[c];
    StoreNumber(y, p.out_type, head.turned_k, token * head.turned_k_stride + c);
  }
}

// A block turns the rows of one token (x) and one KV head (y).
KVL_KERNEL(kTurnThreads) TurnKernel(KVL_PARAMS(TurnHeadsParams) p) {
  const TurnParams& turn = p.turn;
  const TurnedHead& head = p.heads[BlockIdxY()];
  const int token = BlockIdx();
  const int position =
      turn.positions == nullptr ? turn.few_positions[token] : turn.positions[token];
  TurnQueries(turn, head, token, position);
  TurnKey(turn, head, token, position);
}

KVL_KERNEL(kTurnThreads) AddRowsKernel(KVL_PARAMS(AddRowsParams) p) {
  const AddedRows& item = p.items[BlockIdxY()];
  const int64_t row = BlockIdx();
  if (row >= item.n_rows) return;
  for (int i = ThreadIdx(); i < item.width; i += kTurnThreads) {
    const float sum = LoadNumber(p.type, item.k, row * item.width + i) +
                      LoadNumber(p.type, item.v, row * item.v_stride + i);
    StoreNumber(sum, p.type, item.k, row * item.width + i);
  }
}

}  // namespace

void TurnRows(cudaStream_t stream, const TurnParams& params, std::span<const TurnedHead> heads) {
  while (!heads.empty()) {
    const size_t n_heads = std::min<size_t>(heads.size(), kHeadsOfTurn);
    TurnHeadsParams of_launch = {.turn = params};
    std::copy_n(heads.begin(), n_heads, of_launch.heads);
    Launch(stream, TurnKernel,
           {.n_blocks = params.n_tokens,
            .n_threads = kTurnThreads,
            .n_blocks_y = static_cast<int>(n_heads)},
           of_launch);
    heads = heads.subspan(n_heads);
  }
}

void AddRows(cudaStream_t stream, DType type, std::span<const AddedRows> items) {
  while (!items.empty()) {
    const size_t n_items = std::min<size_t>(items.size(), kItemsOfAddRows);
    AddRowsParams params = {.type = type};
    std::copy_n(items.begin(), n_items, params.items);
    int max_rows = 0;
    for (size_t i = 0; i < n_items; ++i) max_rows = std::max(max_rows, items[i].n_rows);
    Launch(
        stream, AddRowsKernel,
        {.n_blocks = max_rows, .n_threads = kTurnThreads, .n_blocks_y = static_cast<int>(n_items)},
        params);
    items = items.subspan(n_items);
  }
}

}  // namespace kvlathe::cuda

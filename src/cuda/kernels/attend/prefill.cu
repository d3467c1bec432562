#include <algorithm>

#include "cuda/kernels/attend/block_finder.cuh"
#include "cuda/kernels/attend/expand.cuh"
#include "cuda/kernels/attend/prefill.h"
#include "cuda/kernels/attend/prefill_merge.h"
#include "cuda/kernels/attend/score_cap.cuh"
#include "cuda/kernels/attend/tile.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kMostThreads = kMostPromptRows / kRowsOfWarp * kWarp;
constexpr int kFewestWarps = 4;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// Where everything lies in shared memory.
struct SharedPlaces {
  int64_t k, v, k_scales, v_scales, lost, windows, n_bytes;

  KVL_DEVICE static constexpr SharedPlaces Of(int rows, int most_rank_k, int most_rank_v) {
    SharedPlaces places{};
    places.k = int64_t{2} * rows * QueryStride(most_rank_k);
    places.v = places.k + int64_t{4} * (most_rank_k / 2) * kKeyStride;
    places.k_scales = places.v + int64_t{4} * (kBlockSize / 2) * ValueStride(most_rank_v);
    places.v_scales = places.k_scales + int64_t{4} * kBlockSize;
    places.lost = places.v_scales + int64_t{4} * kBlockSize;
    places.windows = places.lost + int64_t{4} * rows;
    places.n_bytes = places.windows + int64_t{sizeof(WindowTables::values[0])};
    return places;
  }
};

// Where the queries of a head are: that of row t * gqa_group + h is t token strides and h row
// strides behind the first.
struct QueryRows {
  const uint16_t* first;
  int64_t token_stride, row_stride;
  int gqa_group;

  KVL_DEVICE const uint16_t* Of(int row) const {
    return first + row / gqa_group * token_stride + row % gqa_group * row_stride;
  }
};

// The queries of an item side by side in shared memory, zeros behind them. They may begin anywhere.
KVL_DEVICE void StageQueries(const QueryRows& q, int rank, const PromptItem& item, uint16_t* to) {
  const int rows = WarpCount() * kRowsOfWarp, pieces = rank / 8;
  for (int at = ThreadIdx(); at < rows * pieces; at += BlockDim()) {
    const int row = at / pieces, first = at % pieces * 8;
    Words4 piece = {};
    if (row < item.n_rows) {
      const uint16_t* const from = q.Of(item.row_begin + row) + first;
      if (reinterpret_cast<uintptr_t>(from) % sizeof(piece) == 0) {
        piece = LoadWords4(from);
      } else {
        for (int i = 0; i < 4; ++i) piece.x[i] = from[2 * i] | uint32_t{from[2 * i + 1]} << 16;
      }
    }
    *reinterpret_cast<Words4*>(to + row * QueryStride(rank) + first) = piece;
  }
}

// Rows [first, first + kBlockSize) of a sink as a tile; those from n_rows on are zeros.
KVL_DEVICE void StageSinkKeys(const uint16_t* keys, int head_dim, int first, int n_rows,
                              uint32_t* k) {
  const int pairs = head_dim / 2;
  for (int at = ThreadIdx(); at < pairs * kBlockSize; at += BlockDim()) {
    const int pair = at % pairs, token = at / pairs;
    const bool has_row = first + token < n_rows;
    k[pair * kKeyStride + token] =
        has_row ? LoadWord(keys + int64_t{first + token} * head_dim + 2 * pair) : 0;
  }
}
KVL_DEVICE void StageSinkValues(const uint16_t* values, int width, int first, int n_rows,
                                uint32_t* v) {
  for (int at = ThreadIdx(); at < width * (kBlockSize / 2); at += BlockDim()) {
    const int r = at % width, token = at / width * 2;
    uint32_t pair = 0;
    for (int i = 0; i < 2; ++i) {
      if (first + token + i >= n_rows) break;
      pair |= uint32_t{values[int64_t{first + token + i} * width + r]} << (16 * i);
    }
    v[token / 2 * ValueStride(width) + r] = pair;
  }
}

// What rows of a warp see of entries that tokens see in turn.
struct Visibility {
  int first_visible, window, gqa_group, end;

  // Of row `row` of the head, in the tile that begins with entry `begin`.
  KVL_DEVICE SeenTokens Of(int row, int begin) const {
    const int seen = first_visible + row / gqa_group;
    const int first = window > 0 && seen > window ? seen - window : 0;
    return {first - begin, (seen < end ? seen : end) - begin};
  }
};

// The rows of a warp.
struct WarpRows {
  int first, n;  // n may be 0 or less

  KVL_DEVICE int of_lane(int i) const { return first + Lane() / 4 + 8 * i; }
  KVL_DEVICE int last() const { return first + (n < kRowsOfWarp ? n : kRowsOfWarp) - 1; }
  // Whether all rows together see a token of the tile, and whether each sees all of them.
  KVL_DEVICE bool Sees(const Visibility& visibility, int begin) const {
    if (n <= 0) return false;
    return visibility.Of(first, begin).begin < kBlockSize && visibility.Of(last(), begin).end > 0;
  }
  KVL_DEVICE bool SeesAll(const Visibility& visibility, int begin) const {
    return visibility.Of(last(), begin).begin <= 0 && visibility.Of(first, begin).end >= kBlockSize;
  }
};

KVL_DEVICE void HideUnseenOf(const WarpRows& rows, const Visibility& visibility, int begin,
                             float (&s)[kScoreTiles][4]) {
  if (rows.SeesAll(visibility, begin)) return;
  SeenTokens seen[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = rows.of_lane(i);
    seen[i] = row <= rows.last() ? visibility.Of(row, begin) : SeenTokens{0, 0};
  }
  HideUnseen(seen, s);
}

// Entries of an item that rows pass over: its sink, or those of its blocks.
struct Stretch {
  bool is_sink;
  Visibility seen_by;
  int begin, end;
  int rank_k, rank_v;
  QueryRows q;
};

// What a block of threads does for its item.
template <int kChannels>
struct PromptWork {
  static constexpr int kSteps = kChannels > 128 ? 1 : 2;  // of scores that are unrolled
  const PromptParams& p;
  const PromptItem& item;
  const PromptHead& head;
  uint16_t* q;
  TileMemory tile;
  int first_channel;
  WarpRows rows;
  float* lost;  // by row of the item: head.lost_keys times its query
  RowSums<kChannels>& sums;

  KVL_DEVICE Stretch SinkStretch() const {
    return {.is_sink = true,
            .seen_by = {head.sinks_visible, head.sink_window, head.gqa_group, head.n_sinks},
            .begin = 0,
            .end = item.entry_begin == 0 ? head.n_sinks : 0,
            .rank_k = head.head_dim,
            .rank_v = head.width,
            .q = {head.q_full, head.q_full_token_stride, head.q_full_stride, head.gqa_group}};
  }
  // The entries of the item that a row sees, from a whole block on.
  KVL_DEVICE Stretch BlockStretch() const {
    const Visibility seen_by = {head.first_visible, head.window, head.gqa_group, item.entry_end};
    const int begin = seen_by.Of(item.row_begin, 0).begin / kBlockSize * kBlockSize;
    return {.is_sink = false,
            .seen_by = seen_by,
            .begin = begin > item.entry_begin ? begin : item.entry_begin,
            .end = seen_by.Of(item.row_begin + item.n_rows - 1, 0).end,
            .rank_k = head.rank_k,
            .rank_v = head.rank_v,
            .q = {head.q, head.q_token_stride, head.q_stride, head.gqa_group}};
  }

  // Whether keys are copied as they lie.
  KVL_DEVICE bool CopiesKeys(const Stretch& x, const BlockPlace& at) const {
    return !x.is_sink && (head.rebuilt_keys != nullptr || at.run == nullptr);
  }
  KVL_DEVICE void CopyKeys(const BlockPlace& at, int entry) const {
    const std::byte* const rebuilt = head.rebuilt_keys;
    const int64_t offset = int64_t{2} * entry * head.rank_k;
    CopyPlainKeys(rebuilt == nullptr ? at.block : rebuilt + offset, head.rank_k, tile.k);
  }
  KVL_DEVICE void MakeKeys(const Stretch& x, const BlockPlace& at, int entry) const {
    if (x.is_sink) return StageSinkKeys(head.sink_k, x.rank_k, entry, head.n_sinks, tile.k);
    ExpandBlock<true>(*at.run, at.block, at.block_idx, tile);
  }
  KVL_DEVICE void BringValues(const Stretch& x, const BlockPlace& at, int entry) const {
    if (x.is_sink) return StageSinkValues(head.sink_v, x.rank_v, entry, head.n_sinks, tile.v);
    if (at.run == nullptr) {
      const std::byte* const values = at.block + int64_t{2} * kBlockSize * head.stored_rank_k;
      const int n_left = x.end - entry;
      return CopyPlainValues(values, x.rank_v, n_left < kBlockSize ? n_left : kBlockSize, tile.v);
    }
    if (at.run->has_one_side) return CopyKeysToValues(at.run->v, tile);
    ExpandBlock<false>(*at.run, at.block, at.block_idx, tile);
  }

  // Of the warp's rows.
  KVL_DEVICE void FindLost() {
    const QueryRows queries = {head.q_full, head.q_full_token_stride, head.q_full_stride,
                               head.gqa_group};
#pragma unroll 1
    for (int i = 0; i < kRowsOfWarp; ++i) {
      float sum = 0;
      if (head.lost_keys != nullptr && i < rows.n) {
        const uint16_t* const query = queries.Of(rows.first + i);
        for (int c = Lane(); c < head.head_dim; c += kWarp) {
          sum += FloatOfBf16(query[c]) * head.lost_keys[c];
        }
      }
      sum = SumOfWarp(sum);
      if (Lane() == 0) lost[WarpIdx() * kRowsOfWarp + i] = sum;
    }
    SyncWarp();
  }
  KVL_DEVICE float LostOf(int i) const {
    return lost[WarpIdx() * kRowsOfWarp + Lane() / 4 + 8 * i];
  }

  // What is in the sums before any entry: a score without a value, which one lane of a row counts.
  // It is less by what all scores have lost, unless the cap has given it back to them.
  KVL_DEVICE void AddSinkLogits() {
    if (head.sink_logits == nullptr || item.entry_begin > 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float lost_score = p.score_cap > 0 ? 0 : p.sm_scale * LostOf(i);
      sums.max[i] = (head.sink_logits[rows.of_lane(i) % head.gqa_group] - lost_score) * kLog2E;
      sums.sum[i] = Lane() % 4 == 0 ? 1 : 0;
    }
  }

  KVL_DEVICE void CapScores(float (&s)[kScoreTiles][4]) const {
    const TanhCap cap(p.score_cap / p.sm_scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float added = LostOf(i);
#pragma unroll
      for (int t = 0; t < kScoreTiles; ++t) {
        s[t][2 * i] = cap.Of(s[t][2 * i] + added);
        s[t][2 * i + 1] = cap.Of(s[t][2 * i + 1] + added);
      }
    }
  }

  // Leaves the scores of the tile that begins with entry `begin`.
  KVL_DEVICE void LeaveScores(const float (&s)[kScoreTiles][4], int begin) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = rows.of_lane(i);
      if (row > rows.last()) continue;
      float* const to = head.scores + (row - head.first_scored_row) * head.scores_stride + begin;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int half = part / 2, odd = part % 2;
        Words4 four;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          four.x[j] = std::bit_cast<uint32_t>(s[4 * half + j][odd + 2 * i]);
        }
        *reinterpret_cast<Words4*>(to + TokenOfLane(half, odd)) = four;
      }
    }
  }

  KVL_DEVICE void Attend(const Stretch& x) {
    if (x.begin >= x.end) return;
    SyncBlock();  // the stretch before is done with
    StageQueries(x.q, x.rank_k, item, q);
    const uint16_t* const own_q = q + WarpIdx() * kRowsOfWarp * QueryStride(x.rank_k);
    BlockFinder finder = {head.blocks, head.runs, head.n_runs, p.base, item.first_run};
    BlockPlace at;
    if (!x.is_sink) at = finder.Find(x.begin / kBlockSize);
    if (CopiesKeys(x, at)) CopyKeys(at, x.begin);
    CommitCopies();
    for (int begin = x.begin; begin < x.end; begin += kBlockSize) {
      if (!CopiesKeys(x, at)) MakeKeys(x, at, begin);
      WaitCopies<0>();
      SyncBlock();  // keys are there, and the values before are done with
      BringValues(x, at, begin);
      CommitCopies();
      const bool sees = rows.Sees(x.seen_by, begin), has_run = at.run != nullptr;
      float s[kScoreTiles][4];
      if (sees) {
        FindScores<kSteps>(own_q, tile.k, x.rank_k, s);
        const bool scales = has_run && at.run->k.has_token_scales && head.rebuilt_keys == nullptr;
        if (scales) ScaleByTokens(tile.k_scales, s);
        if (p.score_cap > 0) CapScores(s);
        if (head.scores != nullptr && !x.is_sink && first_channel == 0) LeaveScores(s, begin);
      }
      WaitCopies<0>();
      SyncBlock();  // values are there, and the keys are done with
      const bool scales_values = has_run && at.run->v.has_token_scales;
      const int next = begin + kBlockSize;
      if (next < x.end && !x.is_sink) {  // copies go on beside the products
        at = finder.Find(next / kBlockSize);
        if (CopiesKeys(x, at)) CopyKeys(at, next);
      }
      CommitCopies();
      if (!sees) continue;
      HideUnseenOf(rows, x.seen_by, begin, s);
      sums.Weigh(p.sm_scale * kLog2E, s);
      if (scales_values) ScaleByTokens(tile.v_scales, s);
      sums.AddValues(s, tile.v + first_channel, ValueStride(x.rank_v), x.rank_v - first_channel);
    }
  }

  // Where a channel of a row is in the output.
  KVL_DEVICE int64_t PlaceOf(int row, int channel) const {
    return row / head.gqa_group * head.out_stride + row % head.gqa_group * head.out_head_stride +
           channel;
  }
  KVL_DEVICE void WriteFour(int row, int channel, const float (&x)[4]) const {
    const int64_t at = PlaceOf(row, channel);
    if (head.out_type == DType::kBf16) {
      uint16_t* const to = static_cast<uint16_t*>(head.out) + at;
      const Words2 four = {PackBf16(x[0], x[1]), PackBf16(x[2], x[3])};
      if (reinterpret_cast<uintptr_t>(to) % sizeof(four) == 0) {
        *reinterpret_cast<Words2*>(to) = four;
        return;
      }
      for (int c = 0; c < 4; ++c) to[c] = static_cast<uint16_t>(four.x[c / 2] >> (16 * (c % 2)));
      return;
    }
    for (int c = 0; c < 4; ++c) static_cast<float*>(head.out)[at + c] = x[c];
  }
  // Writes zeros behind the warp's rows.
  KVL_DEVICE void ClearBehind() const {
    for (int row = rows.first; row <= rows.last(); ++row) {
      for (int r = Lane(); r < head.n_cleared; r += kWarp) {
        const int64_t at = PlaceOf(row, head.width + r);
        if (head.out_type == DType::kBf16) {
          static_cast<uint16_t*>(head.out)[at] = 0;
        } else {
          static_cast<float*>(head.out)[at] = 0;
        }
      }
    }
  }

  KVL_DEVICE void Finish() {
    sums.SumLanes();
    const int n_own = head.width - first_channel;
    const bool is_part = item.partial_offset >= 0;
    float* const partial = is_part ? p.partials + item.partial_offset : nullptr;
    const int64_t n_floats = int64_t{item.n_rows} * head.width;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = rows.of_lane(i), of_item = row - item.row_begin;
      if (row > rows.last()) continue;
      const float factor = is_part ? 1.0f : sums.sum[i] == 0 ? 0.0f : 1.0f / sums.sum[i];
#pragma unroll
      for (int n = 0; n < kChannels / 16; ++n) {
        if (16 * n >= n_own) break;
        const int channel = first_channel + 16 * n + Lane() % 4 * 4;
        const float(&even)[4] = sums.o[2 * n];
        const float(&odd)[4] = sums.o[2 * n + 1];
        const float four[4] = {even[2 * i] * factor, odd[2 * i] * factor, even[2 * i + 1] * factor,
                               odd[2 * i + 1] * factor};
        if (is_part) {
          for (int c = 0; c < 4; ++c)
            partial[int64_t{of_item} * head.width + channel + c] = four[c];
        } else {
          WriteFour(row, channel, four);
        }
      }
      if (first_channel > 0 || Lane() % 4 != 0) continue;
      if (head.row_max != nullptr) {
        head.row_max[row - head.first_scored_row] = sums.max[i] * kLn2;
        head.row_sum[row - head.first_scored_row] = sums.sum[i];
      }
      if (is_part) {
        partial[n_floats + of_item] = sums.max[i] * kLn2;
        partial[n_floats + (item.n_rows + 15) / 16 * 16 + of_item] = sums.sum[i];
      }
    }
    if (!is_part && first_channel == 0 && rows.n > 0) ClearBehind();
  }
};

template <int kChannels>
KVL_KERNEL(kMostThreads, 1)
PromptKernel(KVL_PARAMS(PromptParams) p) {
  const PromptItem& item = p.items[BlockIdx()];
  const PromptHead& head = p.heads[item.head];
  const int first_channel = BlockIdxY() * kChannels;
  if (first_channel >= head.width) return;
  const SharedPlaces places =
      SharedPlaces::Of(WarpCount() * kRowsOfWarp, p.most_rank_k, p.most_rank_v);
  std::byte* const shared = Shared();
  auto* const windows = reinterpret_cast<uint16_t*>(shared + places.windows);
  StageWindows(head.runs, head.n_runs, p.tables, windows);
  const int first_row = WarpIdx() * kRowsOfWarp;
  RowSums<kChannels> sums;
  sums.Clear();
  PromptWork<kChannels> work = {p,
                                item,
                                head,
                                reinterpret_cast<uint16_t*>(shared),
                                {reinterpret_cast<uint32_t*>(shared + places.k),
                                 reinterpret_cast<uint32_t*>(shared + places.v),
                                 reinterpret_cast<float*>(shared + places.k_scales),
                                 reinterpret_cast<float*>(shared + places.v_scales), windows},
                                first_channel,
                                {item.row_begin + first_row, item.n_rows - first_row},
                                reinterpret_cast<float*>(shared + places.lost),
                                sums};
  if (p.score_cap > 0 || head.sink_logits != nullptr) work.FindLost();
  work.AddSinkLogits();
#pragma unroll 1
  for (int i = 0; i < 2; ++i) work.Attend(i == 0 ? work.SinkStretch() : work.BlockStretch());
  work.Finish();
}

template <int kChannels>
void LaunchFor(cudaStream_t stream, const PromptParams& p) {
  // Warps without rows help to expand blocks.
  const int n_warps = std::max(kFewestWarps, (p.most_rows + kRowsOfWarp - 1) / kRowsOfWarp);
  const int rows = n_warps * kRowsOfWarp;
  Launch(stream, PromptKernel<kChannels>,
         {.n_blocks = p.n_items,
          .n_threads = n_warps * kWarp,
          .shared_bytes = PromptSharedBytes(rows, p.most_rank_k, p.most_rank_v),
          .n_blocks_y = (p.most_width + kChannels - 1) / kChannels},
         p);
}

}  // namespace

int64_t PromptSharedBytes(int rows, int most_rank_k, int most_rank_v) {
  rows = std::max(kFewestWarps, (rows + kRowsOfWarp - 1) / kRowsOfWarp) * kRowsOfWarp;
  return SharedPlaces::Of(rows, most_rank_k, most_rank_v).n_bytes;
}

void AttendPrompt(cudaStream_t stream, const PromptParams& params) {
  if (params.most_width <= 64) {
    LaunchFor<64>(stream, params);
  } else if (params.most_width <= 128) {
    LaunchFor<128>(stream, params);
  } else {
    LaunchFor<256>(stream, params);
  }
  MergePromptParts(stream, params);
}

}  // namespace kvlathe::cuda

#include "cpu/attention/frames.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/units.h"
#include "cpu/attention/partial.h"
#include "cpu/attention/turning_mean.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int kFrameBlocks = kFramePositions / kBlockSize;
// Queries of several frames are made together as long as they are so many rows at most: what a
// product takes at a time (linear_avx2.cc), so that it reads the map once.
constexpr int kRowsTogether = 64;

int FramesTogether(int n_rows) { return std::max(1, kRowsTogether / std::max(1, n_rows)); }

// Where the pieces of the scratch lie. Without memory, how much they take.
struct FrameMemory {
  FrameMemory(const BlockShape& shape, int head_dim, int n_rows, std::byte* memory) {
    const auto take = [&](int64_t piece_bytes) {
      std::byte* const piece = memory == nullptr ? nullptr : memory + n_bytes;
      n_bytes += RoundUp(piece_bytes, kLineBytes);
      return piece;
    };
    const auto take_floats = [&](int64_t n) {
      return reinterpret_cast<float*>(take(n * int64_t{sizeof(float)}));
    };
    const int64_t element = SizeOf(shape.row_type), n = n_rows;
    const int64_t n_together = std::max<int64_t>(n, kRowsTogether);  // of as many rows or fewer
    angles = take_floats(head_dim);
    row = take_floats(head_dim);
    whole = take_floats(n * head_dim);
    lost_products = take_floats(n_together);
    mean = take_floats(MeanQueries::MemoryFloats(n_rows, kFrameBlocks));
    turned = take(n_together * head_dim * element);
    mapped = take(n_together * shape.rank_k * element);
    q = take(n_together * shape.rank_k * element);
    more = take_floats(0);
  }
  float* angles;         // cosines of a frame, then sines
  float* row;            // a query, turned back
  float* whole;          // queries as they are
  float* lost_products;  // by frame and row of the call
  float* mean;           // MeanQueries of a frame
  std::byte* turned;     // queries of one map, by frame, turned back
  std::byte* mapped;     // and mapped
  std::byte* q;          // those of all maps as attention takes them
  float* more;           // partial results of a frame
  int64_t n_bytes = 0;   // before those
};

// Makes the queries of a call for some frames at a time.
class FrameQueries {
 public:
  FrameQueries(const FrameKernels& kernels, const FramesOfHead& frames, const AttendParams& params,
               const FrameMemory& memory)
      : kernels_(kernels),
        frames_(frames),
        params_(params),
        memory_(memory),
        type_(params.shape.row_type),
        element_(SizeOf(type_)),
        unit_(std::sqrt(frames.way_back)),
        n_maps_(static_cast<int>(frames.maps.size())),
        group_(params.gqa_group / n_maps_),
        n_map_rows_(params.n_rows / n_maps_),
        mean_(frames, kernels.elementwise, params.n_rows, memory.mean) {
    for (int map = 0; map < n_maps_; ++map) {
      for (int i = 0; i < n_map_rows_; ++i) {
        const int64_t row = RowOf(map, i);
        const int64_t from = row * frames_.q_stride + int64_t{map} * frames_.head_dim;
        float* const whole = memory_.whole + row * frames_.head_dim;
        ConvertToFloat(type_, frames_.q + from * element_, frames_.head_dim, whole);
        if (mean_.HasMean()) mean_.SetRow(row, map, whole);
      }
    }
  }

  // Makes those of n_frames frames, at most FramesTogether, of which the first begins at
  // `position`.
  void Make(int position, int n_frames) {
    for (int map = 0; map < n_maps_; ++map) {
      for (int frame = 0; frame < n_frames; ++frame) {
        FindAngles(position + frame * kFramePositions);
        for (int i = 0; i < n_map_rows_; ++i) TurnBack(map, i, frame);
      }
      LinearParams product;
      product.w = frames_.maps[map];
      product.n_rows = int64_t{n_frames} * n_map_rows_;
      product.x_type = product.y_type = type_;
      product.x = memory_.turned;
      product.x_stride = frames_.head_dim;
      product.y = memory_.mapped;
      product.y_stride = params_.shape.rank_k;
      kernels_.linear->RunOnWorker(product, kernels_.worker_id);
      const int64_t row_bytes = params_.shape.rank_k * element_;
      for (int64_t i = 0; i < product.n_rows; ++i) {
        const int64_t row = i / n_map_rows_ * params_.n_rows + RowOf(map, i % n_map_rows_);
        std::memcpy(memory_.q + row * row_bytes, memory_.mapped + i * row_bytes, row_bytes);
      }
    }
  }
  // Of one of the frames that were made last.
  const std::byte* q(int frame) const {
    return memory_.q + int64_t{frame} * params_.n_rows * params_.shape.rank_k * element_;
  }
  const float* lost_products(int frame) const {
    return memory_.lost_products + int64_t{frame} * params_.n_rows;
  }

  const MeanQueries& mean() const { return mean_; }

 private:
  // The row of a call that is row i of a map.
  int64_t RowOf(int map, int i) const {
    return int64_t{i / group_} * params_.gqa_group + int64_t{map} * group_ + i % group_;
  }

  // Those by which queries turn back, which absolute pairs do not.
  void FindAngles(int position) {
    const int half = frames_.half;
    const float* const cos = frames_.cos + int64_t{position} * half;
    const float* const sin = frames_.sin + int64_t{position} * half;
    for (int i = 0; i < half; ++i) {
      const bool turns = i >= frames_.n_absolute;
      memory_.angles[i] = turns ? unit_ * cos[i] : 1;
      memory_.angles[half + i] = turns ? -unit_ * sin[i] : 0;
    }
  }

  void TurnBack(int map, int i, int frame) {
    const int d = frames_.head_dim, half = frames_.half;
    const int64_t row = RowOf(map, i);
    const ElementwiseKernels& elementwise = kernels_.elementwise;
    elementwise.rope(memory_.whole + row * d, memory_.angles, memory_.angles + half, 2 * half, d,
                     DType::kF32, memory_.row);
    elementwise.convert(
        memory_.row, d, type_,
        memory_.turned + (int64_t{frame} * n_map_rows_ + i) * int64_t{d} * element_);
    memory_.lost_products[int64_t{frame} * params_.n_rows + row] = LostProduct(map);
  }

  // What the offset that keys have lost would add to the product with each key of the frame, for
  // the query that was turned back last. Without frames it is the same for all keys, and nothing.
  float LostProduct(int map) const {
    if (frames_.key_offset == nullptr) return 0;
    const int d = frames_.head_dim;
    const float* const offset = frames_.key_offset + int64_t{map} * d;
    constexpr int kSums = 8;  // which are vectors
    float sums[kSums] = {};
    int i = 0;
    for (; i + kSums <= d; i += kSums) {
      for (int j = 0; j < kSums; ++j) sums[j] += offset[i + j] * memory_.row[i + j];
    }
    float sum = 0;
    for (; i < d; ++i) sum += offset[i] * memory_.row[i];
    for (const float part : sums) sum += part;
    return sum;
  }

  const FrameKernels& kernels_;
  const FramesOfHead& frames_;
  const AttendParams& params_;
  const FrameMemory& memory_;
  DType type_;
  int64_t element_;
  float unit_;  // what takes the amplitude off cosines and sines
  int n_maps_, group_;
  int n_map_rows_;  // of a frame
  MeanQueries mean_;
};

}  // namespace

int64_t FrameScratchBytes(const BlockShape& shape, int head_dim, int n_rows,
                          int64_t max_item_floats) {
  return FrameMemory(shape, head_dim, n_rows, nullptr).n_bytes + 4 * max_item_floats;
}

void AttendFrames(const FrameKernels& kernels, const FramesOfHead& frames, const AttendParams& p,
                  const FrameScratch& scratch) {
  KVL_DCHECK(p.scores == nullptr);
  const FrameMemory memory(p.shape, frames.head_dim, p.n_rows, scratch.own);
  const int rank_v = p.shape.rank_v;
  const PartialRows more = PartialAt(memory.more, p.n_rows, rank_v);
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  const int begin =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (begin >= end) return kernels.attend.attend(p, scratch.kernel);  // which sees nothing
  FrameQueries queries(kernels, frames, p, memory);
  for (int entry = begin, n_made = 0, idx = 0; entry < end; ++idx) {
    const int first = entry - (entry + frames.first_place) % kFramePositions;  // of the frame
    if (idx == n_made) {
      const int n_left = (end - first + kFramePositions - 1) / kFramePositions;
      n_made = std::min(FramesTogether(p.n_rows), n_left);
      queries.Make(frames.first_position + first, n_made);
      idx = 0;
    }
    AttendParams frame = p;
    frame.kv_begin = entry;
    frame.kv_end = std::min(p.kv_end, first + kFramePositions);
    const int n_blocks = (std::min(end, frame.kv_end) - entry + kBlockSize - 1) / kBlockSize;
    frame.mean = queries.mean().Of(frames.first_position + entry, n_blocks);
    frame.q = queries.q(idx);
    frame.q_stride = p.shape.rank_k;
    const bool is_first = entry == begin;
    if (!is_first) {
      frame.o = more.o;
      frame.o_stride = rank_v;
      frame.row_max = more.row_max;
      frame.row_sum = more.row_sum;
    }
    const float* const lost_products = queries.lost_products(idx);
    frame.score_offsets = lost_products;
    kernels.attend.attend(frame, scratch.kernel);
    // With a cap the kernel has added them.
    for (int row = 0; p.score_cap == 0 && row < p.n_rows; ++row) {
      frame.row_max[row] += p.sm_scale * lost_products[row];
    }
    if (!is_first) MergePartial(more, p.n_rows, rank_v, {p.o, p.row_max, p.row_sum}, p.o_stride);
    entry = frame.kv_end;
  }
}

}  // namespace kvlathe

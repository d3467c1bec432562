#include "cpu/attention/frames.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/units.h"
#include "cpu/attention/partial.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

constexpr int64_t kLineBytes = 64;

int64_t MostQueryWidth(const BlockShape& shape) { return shape.rank_k + 2 * kMostTurningPairs; }

// Where the pieces of the scratch lie.
struct FrameMemory {
  FrameMemory(const BlockShape& shape, int head_dim, int n_rows, std::byte* memory) {
    const auto take = [&](int64_t n_bytes) {
      std::byte* const piece = memory;
      memory += RoundUp(n_bytes, kLineBytes);
      return piece;
    };
    const int64_t element = SizeOf(shape.row_type), n = n_rows;
    row = reinterpret_cast<float*>(take(head_dim * int64_t{sizeof(float)}));
    offset_scores = reinterpret_cast<float*>(take(n * int64_t{sizeof(float)}));
    turned = take(n * head_dim * element);
    mapped = take(n * MostQueryWidth(shape) * element);
    q = take(n * MostQueryWidth(shape) * element);
    more = reinterpret_cast<float*>(memory);
  }
  float* row;            // a query
  float* offset_scores;  // by row of the call
  std::byte* turned;     // queries of one map, turned back
  std::byte* mapped;     // and mapped
  std::byte* q;          // those of all maps as attention takes them
  float* more;           // partial results of a frame
};

// Makes the queries of a call for one frame after the other.
class FrameQueries {
 public:
  FrameQueries(const FramesOfHead& frames, const AttendParams& params, const FrameMemory& memory)
      : frames_(frames),
        params_(params),
        memory_(memory),
        type_(params.shape.row_type),
        element_(SizeOf(type_)),
        width_(params.shape.rank_k + 2 * params.mean.n_pairs),
        n_tokens_(params.n_rows / params.gqa_group),
        group_(params.gqa_group / static_cast<int>(frames.maps.size())) {}

  int64_t width() const { return width_; }

  // For the frame that begins at `position`.
  void Make(int position, Linear* linear, int worker_id) {
    for (size_t map = 0; map < frames_.maps.size(); ++map) {
      for (int64_t i = 0; i < int64_t{n_tokens_} * group_; ++i) {
        const std::byte* const whole = frames_.q + (RowOf(map, i) * frames_.q_stride +
                                                    static_cast<int64_t>(map) * frames_.head_dim) *
                                                       element_;
        TurnBack(whole, position, memory_.turned + i * frames_.head_dim * element_);
        memory_.offset_scores[RowOf(map, i)] = OffsetScore(map);
      }
      LinearParams product;
      product.w = frames_.maps[map];
      product.n_rows = int64_t{n_tokens_} * group_;
      product.x_type = product.y_type = type_;
      product.x = memory_.turned;
      product.x_stride = frames_.head_dim;
      product.y = memory_.mapped;
      product.y_stride = width_;
      linear->RunOnWorker(product, worker_id);
      for (int64_t i = 0; i < int64_t{n_tokens_} * group_; ++i) Place(RowOf(map, i), i);
    }
  }

 private:
  // The row of a call that is row i of a map.
  int64_t RowOf(size_t map, int64_t i) const {
    return i / group_ * params_.gqa_group + static_cast<int64_t>(map) * group_ + i % group_;
  }

  void TurnBack(const std::byte* from, int position, std::byte* to) const {
    float* const row = memory_.row;
    ConvertToFloat(type_, from, frames_.head_dim, row);
    const int half = frames_.half;
    const float unit = std::sqrt(frames_.way_back);
    const int64_t angles = int64_t{position} * half;
    for (int i = frames_.n_absolute; i < half; ++i) {
      const float cos = unit * frames_.cos[angles + i], sin = unit * frames_.sin[angles + i];
      const float a = row[i], b = row[i + half];
      row[i] = a * cos + b * sin;
      row[i + half] = b * cos - a * sin;
    }
    ConvertFromFloat(type_, row, frames_.head_dim, to);
  }

  // What the offset that keys have lost would add to the score of each key of the frame, for the
  // query that was turned back last. Without frames it is the same for all keys, and nothing.
  float OffsetScore(size_t map) const {
    if (frames_.key_offset == nullptr) return 0;
    const int d = frames_.head_dim;
    const float* const offset = frames_.key_offset + static_cast<int64_t>(map) * d;
    return params_.sm_scale * std::inner_product(offset, offset + d, memory_.row, 0.0f);
  }

  // The weights of the mean are those of the query as it is.
  void Place(int64_t row, int64_t mapped_row) const {
    const int64_t rank = params_.shape.rank_k;
    std::byte* const to = memory_.q + row * width_ * element_;
    std::memcpy(to, memory_.mapped + mapped_row * width_ * element_, rank * element_);
    const std::byte* const whole =
        static_cast<const std::byte*>(params_.q) + row * params_.q_stride * element_;
    std::memcpy(to + rank * element_, whole + rank * element_, (width_ - rank) * element_);
  }

  const FramesOfHead& frames_;
  const AttendParams& params_;
  const FrameMemory& memory_;
  DType type_;
  int64_t element_;
  int64_t width_;
  int n_tokens_, group_;
};

}  // namespace

int64_t FrameScratchBytes(const BlockShape& shape, int head_dim, int n_rows,
                          int64_t max_item_floats) {
  const int64_t n_numbers = n_rows * (head_dim + 2 * MostQueryWidth(shape));
  return RoundUp(head_dim * int64_t{sizeof(float)}, kLineBytes) + n_rows * int64_t{sizeof(float)} +
         n_numbers * SizeOf(shape.row_type) + 4 * kLineBytes + 4 * max_item_floats;
}

void AttendFrames(const AttendKernels& kernels, Linear* linear, int worker_id,
                  const FramesOfHead& frames, const AttendParams& p, const FrameScratch& scratch) {
  KVL_DCHECK(p.scores == nullptr);
  const FrameMemory memory(p.shape, frames.head_dim, p.n_rows, scratch.own);
  FrameQueries queries(frames, p, memory);
  const int rank_v = p.shape.rank_v;
  const PartialRows more = PartialAt(memory.more, p.n_rows, rank_v);
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  int entry =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (entry >= end) return kernels.attend(p, scratch.kernel);  // which sees nothing
  for (bool is_first = true; entry < end; is_first = false) {
    const int place = (entry + frames.first_place) % kFramePositions;
    AttendParams frame = p;
    frame.kv_begin = entry;
    frame.kv_end = std::min(p.kv_end, entry + kFramePositions - place);
    queries.Make(frames.first_position + entry - place, linear, worker_id);
    frame.q = memory.q;
    frame.q_stride = queries.width();
    if (!is_first) {
      frame.o = more.o;
      frame.o_stride = rank_v;
      frame.row_max = more.row_max;
      frame.row_sum = more.row_sum;
    }
    kernels.attend(frame, scratch.kernel);
    for (int row = 0; row < p.n_rows; ++row) frame.row_max[row] += memory.offset_scores[row];
    if (!is_first) MergePartial(more, p.n_rows, rank_v, {p.o, p.row_max, p.row_sum}, p.o_stride);
    entry = frame.kv_end;
  }
}

}  // namespace kvlathe

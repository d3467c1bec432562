#include "cpu/attention/rebuilt.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/units.h"
#include "cpu/attention/partial.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

constexpr int64_t kPieceAlignment = 64;
// Blocks that are rebuilt together: those of a frame. Those of a
// KV head take 64 to 128 KiB of L2.
constexpr int kRebuiltBlocks = kFramePositions / kBlockSize;
constexpr int kRebuiltEntries = kRebuiltBlocks * kBlockSize;

// The widest values that rows meet: those of the model, or those that are stored.
int WidestValue(const BlockShape& shape, int head_dim) { return std::max(head_dim, shape.rank_v); }

// Where the pieces of the scratch lie. Without memory, how much they take.
struct RebuiltMemory {
  RebuiltMemory(const BlockShape& shape, int head_dim, int n_joined, int n_rows,
                std::byte* memory) {
    const auto take = [&](int64_t piece_bytes) {
      std::byte* const piece = memory == nullptr ? nullptr : memory + n_bytes;
      n_bytes += RoundUp(piece_bytes, kPieceAlignment);
      return piece;
    };
    const auto take_floats = [&](int64_t n) {
      return reinterpret_cast<float*>(take(n * int64_t{sizeof(float)}));
    };
    const auto take_words = [&](int64_t n) { return reinterpret_cast<uint16_t*>(take(2 * n)); };
    const int width = WidestValue(shape, head_dim);
    const int64_t n = n_rows, n_map_rows = n / n_joined;
    const int64_t channels = shape.rank_k + shape.rank_v;
    cos = take_floats(kRebuiltEntries * int64_t{kMostTurningPairs});
    sin = take_floats(kRebuiltEntries * int64_t{kMostTurningPairs});
    values = take_floats(kBlockSize * channels);
    keys = take_floats(kBlockSize * int64_t{head_dim});
    o = take_floats(n_joined * PartialFloats(static_cast<int>(n_map_rows), width));
    outputs = take_floats(n_map_rows * shape.rank_v);
    q = take_words(n * head_dim);
    stored = take_words(kRebuiltEntries * channels);
    blocks = take(kRebuiltBlocks * BlockBytes({head_dim, width}));
  }
  float* cos;  // of the pairs that have lost a mean, [block][pair][kBlockSize]
  float* sin;
  float* values;      // of a sealed block
  float* keys;        // of a block of one KV head, [head_dim][kBlockSize]
  float* o;           // partial results by KV head
  float* outputs;     // in the basis, of one KV head
  uint16_t* q;        // queries by KV head
  uint16_t* stored;   // sealed blocks as plain ones
  std::byte* blocks;  // rebuilt ones
  int64_t n_bytes = 0;
};

// Makes plain blocks of the KV heads of the model, some at a time in ascending order.
class BlockRebuilder {
 public:
  BlockRebuilder(const FrameKernels& kernels, const RebuildReaders& readers,
                 const RebuiltHead& head, const FramesOfHead& frames, const AttendParams& params,
                 const RebuiltMemory& memory)
      : kernels_(kernels),
        readers_(readers),
        head_(head),
        frames_(frames),
        params_(params),
        memory_(memory),
        unit_(std::sqrt(frames.way_back)),
        width_(head.values.empty() ? params.shape.rank_v : head.head_dim) {
    const int64_t block_bytes = BlockBytes(shape());
    for (int b = 0; b < kRebuiltBlocks; ++b) blocks_[b] = memory.blocks + b * block_bytes;
  }

  // The shape of rebuilt blocks.
  BlockShape shape() const { return {head_.head_dim, width_, DType::kBf16}; }
  const std::byte* const* blocks() const { return blocks_; }

  // Reads n_blocks blocks from the one of `entry` on, which are of one frame.
  void Read(int entry, int n_blocks) {
    entry_ = entry;
    n_blocks_ = n_blocks;
    for (int b = 0; b < n_blocks; ++b) {
      stored_[b] = PlainBlock(entry / kBlockSize + b, b);
      if (HasMean()) FindMeanAngles(b);
    }
  }

  // Makes the plain blocks of a KV head of what was read.
  void Make(int map) {
    const int64_t key_words = KeyBytes(params_.shape) / 2;
    for (int b = 0; b < n_blocks_; ++b) {
      auto* const k = reinterpret_cast<uint16_t*>(blocks_[b]);
      uint16_t* const v = k + KeyBytes(shape()) / 2;
      readers_.rows.map_keys(*head_.keys[map], stored_[b], memory_.keys);
      if (HasFrames()) TurnByFrame(map);
      if (HasMean()) AddMean(map, b);
      readers_.rows.round_keys(memory_.keys, head_.head_dim, k);
      const uint16_t* const values = stored_[b] + key_words;
      if (head_.values.empty()) {
        std::memcpy(v, values, int64_t{2} * kBlockSize * width_);
      } else {
        readers_.rows.map_values(*head_.values[map], values, v);
      }
    }
  }

 private:
  bool HasFrames() const { return !frames_.maps.empty(); }
  bool HasMean() const { return frames_.mean_angles.n_pairs > 0; }
  float* KeysOf(int channel) const { return memory_.keys + channel * kBlockSize; }

  // Block `block`, which is the b-th of those that are read.
  const uint16_t* PlainBlock(int block, int b) {
    const PackedRun* const before = run_;
    run_ = params_.packed == nullptr ? nullptr : FindRun(*params_.packed, block, &run_idx_);
    if (run_ == nullptr) return reinterpret_cast<const uint16_t*>(params_.blocks[block]);
    if (run_ != before) view_ = ViewRun(params_, *run_);
    const int64_t n = int64_t{kBlockSize} * (params_.shape.rank_k + params_.shape.rank_v);
    readers_.sealed(view_, params_.blocks[block], block - run_->first_block, memory_.values);
    kernels_.elementwise.convert(memory_.values, n, DType::kBf16, memory_.stored + b * n);
    return memory_.stored + b * n;
  }

  // Gives keys their offsets back and turns them by the start of the frame, but for absolute pairs.
  void TurnByFrame(int map) const {
    const int half = frames_.half;
    const int start = entry_ - (entry_ + frames_.first_place) % kFramePositions;
    const int64_t from = int64_t{frames_.first_position + start} * half;
    const float* const offset = frames_.key_offset + int64_t{map} * head_.head_dim;
    for (int i = 0; i < head_.head_dim && frames_.key_offset != nullptr; ++i) {
      for (int t = 0; t < kBlockSize; ++t) KeysOf(i)[t] += offset[i];
    }
    for (int i = frames_.n_absolute; i < half; ++i) {
      const float c = unit_ * frames_.cos[from + i], s = unit_ * frames_.sin[from + i];
      float *const a = KeysOf(i), *const b = KeysOf(half + i);
      for (int t = 0; t < kBlockSize; ++t) {
        const float x = a[t], y = b[t];
        a[t] = c * x - s * y;
        b[t] = c * y + s * x;
      }
    }
  }

  float* CosOf(int b) const { return memory_.cos + int64_t{b} * kBlockSize * kMostTurningPairs; }
  float* SinOf(int b) const { return memory_.sin + int64_t{b} * kBlockSize * kMostTurningPairs; }

  // Without their amplitude, which the mean has.
  void FindMeanAngles(int b) const {
    const int n_pairs = frames_.mean_angles.n_pairs;
    for (int t = 0; t < kBlockSize; ++t) {
      // Entries that are not there yet turn like the last one; nobody sees them.
      const int64_t entry = std::min(entry_ + b * kBlockSize + t, params_.kv_end - 1);
      const int64_t from = (frames_.first_position + entry) * frames_.half;
      for (int i = 0; i < n_pairs; ++i) {
        CosOf(b)[i * kBlockSize + t] = unit_ * frames_.cos[from + i];
        SinOf(b)[i * kBlockSize + t] = unit_ * frames_.sin[from + i];
      }
    }
  }

  void AddMean(int map, int block) const {
    const float* const mean = frames_.turning_mean + int64_t{map} * head_.head_dim;
    for (int i = 0; i < frames_.mean_angles.n_pairs; ++i) {
      const float x = mean[i], y = mean[frames_.half + i];
      const float* const c = CosOf(block) + i * kBlockSize;
      const float* const s = SinOf(block) + i * kBlockSize;
      float *const a = KeysOf(i), *const b = KeysOf(frames_.half + i);
      for (int t = 0; t < kBlockSize; ++t) {
        a[t] += x * c[t] - y * s[t];
        b[t] += y * c[t] + x * s[t];
      }
    }
  }

  const FrameKernels& kernels_;
  const RebuildReaders& readers_;
  const RebuiltHead& head_;
  const FramesOfHead& frames_;
  const AttendParams& params_;
  const RebuiltMemory& memory_;
  float unit_;                    // what takes the amplitude off cosines and sines
  int width_;                     // of values
  int entry_ = 0, n_blocks_ = 0;  // what was read
  const uint16_t* stored_[kRebuiltBlocks] = {};
  int run_idx_ = 0;
  const PackedRun* run_ = nullptr;
  PackedRunView view_;
  std::byte* blocks_[kRebuiltBlocks];
};

// The rows of a call by KV head of the model, and their results.
class RowsByMap {
 public:
  RowsByMap(const FrameKernels& kernels, const RebuiltHead& head, const AttendParams& params,
            int width, const RebuiltMemory& memory)
      : kernels_(kernels),
        head_(head),
        params_(params),
        memory_(memory),
        n_maps_(static_cast<int>(head.keys.size())),
        group_(params.gqa_group / n_maps_),
        n_rows_(params.n_rows / n_maps_),
        width_(width) {}

  int n_maps() const { return n_maps_; }

  void GatherQueries(const FramesOfHead& frames) const {
    const int d = head_.head_dim;
    for (int map = 0; map < n_maps_; ++map) {
      for (int i = 0; i < n_rows_; ++i) {
        const int64_t from = RowOf(map, i) * frames.q_stride + int64_t{map} * d;
        std::memcpy(QueriesOf(map) + int64_t{i} * d, frames.q + 2 * from, 2 * d);
      }
    }
  }

  // Attends to the rebuilt blocks of entries [entry, end) as well.
  void Attend(int map, const BlockRebuilder& rebuilder, int entry, int end, bool is_first,
              std::byte* kernel_scratch) const {
    const PartialRows sum = PartialOf(map);
    AttendParams p;
    p.shape = rebuilder.shape();
    p.gqa_group = group_;
    p.q_stride = head_.head_dim;
    p.blocks = rebuilder.blocks();
    p.kv_end = end - entry;
    p.window = params_.window;
    p.sm_scale = params_.sm_scale;
    p.o_stride = width_;
    p.n_rows = n_rows_;
    p.q = QueriesOf(map);
    p.first_visible = params_.first_visible - entry;
    p.continues = !is_first;
    p.o = sum.o;
    p.row_max = sum.row_max;
    p.row_sum = sum.row_sum;
    kernels_.attend.attend(p, kernel_scratch);
  }

  // Writes the results as those of the call.
  void WriteResults() const {
    const int rank_v = params_.shape.rank_v;
    for (int map = 0; map < n_maps_; ++map) {
      const PartialRows rows = PartialOf(map);
      const float* outputs = rows.o;
      if (!head_.outputs.empty()) {
        LinearParams product;
        product.w = head_.outputs[map];
        product.n_rows = n_rows_;
        product.x_type = DType::kF32;
        product.x = rows.o;
        product.x_stride = width_;
        product.y = memory_.outputs;
        product.y_stride = rank_v;
        kernels_.linear->RunOnWorker(product, kernels_.worker_id);
        outputs = memory_.outputs;
      }
      for (int64_t i = 0; i < n_rows_; ++i) {
        const int64_t row = RowOf(map, static_cast<int>(i));
        std::memcpy(params_.o + row * params_.o_stride, outputs + i * rank_v,
                    sizeof(float) * rank_v);
        params_.row_max[row] = rows.row_max[i];
        params_.row_sum[row] = rows.row_sum[i];
      }
    }
  }

 private:
  // The row of the call that is row i of a map.
  int64_t RowOf(int map, int i) const {
    return int64_t{i / group_} * params_.gqa_group + int64_t{map} * group_ + i % group_;
  }
  uint16_t* QueriesOf(int map) const { return memory_.q + int64_t{map} * n_rows_ * head_.head_dim; }
  PartialRows PartialOf(int map) const {
    return PartialAt(memory_.o + map * PartialFloats(n_rows_, width_), n_rows_, width_);
  }

  const FrameKernels& kernels_;
  const RebuiltHead& head_;
  const AttendParams& params_;
  const RebuiltMemory& memory_;
  int n_maps_, group_;
  int n_rows_;  // of a map
  int width_;   // of values
};

}  // namespace

bool IsWorthRebuilding(const BlockShape& shape, int head_dim, int n_joined, bool turns,
                       int n_rows) {
  constexpr int kFewestRows = 512;
  // Plain blocks have multiples of 16 channels.
  if (n_rows < kFewestRows || head_dim % 16 != 0) return false;
  if (turns) return true;
  const int64_t n_channels = shape.rank_k + shape.rank_v;
  const int64_t n_saved = n_channels - 2 * head_dim;
  return n_saved * n_rows >= 2 * n_channels * n_joined * head_dim;
}

int64_t RebuiltScratchBytes(const BlockShape& shape, int head_dim, int n_joined, int n_rows) {
  return RebuiltMemory(shape, head_dim, n_joined, n_rows, nullptr).n_bytes;
}

void AttendRebuilt(const FrameKernels& kernels, const RebuildReaders& readers,
                   const RebuiltHead& head, const FramesOfHead& frames, const AttendParams& p,
                   const FrameScratch& scratch) {
  KVL_DCHECK(p.scores == nullptr && p.shape.row_type == DType::kBf16);
  const int n_joined = static_cast<int>(head.keys.size());
  const RebuiltMemory memory(p.shape, head.head_dim, n_joined, p.n_rows, scratch.own);
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  const int begin =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (begin >= end) return kernels.attend.attend(p, scratch.kernel);  // which sees nothing
  BlockRebuilder rebuilder(kernels, readers, head, frames, p, memory);
  const RowsByMap rows(kernels, head, p, rebuilder.shape().rank_v, memory);
  rows.GatherQueries(frames);
  for (int entry = begin, next; entry < end; entry = next) {
    next = entry - (entry + frames.first_place) % kFramePositions + kFramePositions;
    const int tile_end = std::min(end, next);
    rebuilder.Read(entry, (tile_end - entry + kBlockSize - 1) / kBlockSize);
    for (int map = 0; map < rows.n_maps(); ++map) {
      rebuilder.Make(map);
      rows.Attend(map, rebuilder, entry, std::min(p.kv_end, next), entry == begin, scratch.kernel);
    }
  }
  rows.WriteResults();
}

}  // namespace kvlathe

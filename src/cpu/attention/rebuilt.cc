#include "cpu/attention/rebuilt.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

constexpr int64_t kPieceAlignment = 64;
// Blocks that are rebuilt together, 64 to 128 KiB. All rows pass over them then. On a Zen 5 with 1
// MiB of L2 16 were no faster.
constexpr int kRebuiltBlocks = 4;

// The widest values that rows meet: those of the model, or those that are stored.
int WidestValue(const BlockShape& shape, int head_dim) { return std::max(head_dim, shape.rank_v); }

// Where the pieces of the scratch lie. Without memory, how much they take.
struct RebuiltMemory {
  RebuiltMemory(const BlockShape& shape, int head_dim, int n_rows, std::byte* memory) {
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
    const int64_t n = n_rows;
    const int64_t channels = shape.rank_k + shape.rank_v;
    cos = take_floats(kBlockSize * int64_t{kMostTurningPairs});
    sin = take_floats(kBlockSize * int64_t{kMostTurningPairs});
    values = take_floats(kBlockSize * channels);
    keys = take_floats(kBlockSize * int64_t{head_dim});
    o = take_floats(n * head_dim);
    outputs = take_floats(n * shape.rank_v);
    q = take_words(n * head_dim);
    stored = take_words(kBlockSize * channels);
    blocks = take(kRebuiltBlocks * BlockBytes({head_dim, width}));
  }
  float* cos;  // of the pairs that have lost a mean, [pair][kBlockSize], of a block
  float* sin;
  float* values;      // of a sealed block
  float* keys;        // of a block, [head_dim][kBlockSize]
  float* o;           // results in rows of the model
  float* outputs;     // in the basis
  uint16_t* q;        // queries side by side
  uint16_t* stored;   // a sealed block as a plain one
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
        width_(head.value == nullptr ? params.shape.rank_v : head.head_dim) {
    const int64_t block_bytes = BlockBytes(shape());
    for (int b = 0; b < kRebuiltBlocks; ++b) blocks_[b] = memory.blocks + b * block_bytes;
  }

  // The shape of rebuilt blocks.
  BlockShape shape() const { return {head_.head_dim, width_, DType::kBf16}; }
  const std::byte* const* blocks() const { return blocks_; }

  // Makes n_blocks plain blocks from the one of `entry` on.
  void Make(int entry, int n_blocks) {
    const int64_t key_words = KeyBytes(params_.shape) / 2;
    for (int b = 0; b < n_blocks; ++b) {
      const uint16_t* const stored = PlainBlock(entry / kBlockSize + b);
      auto* const k = reinterpret_cast<uint16_t*>(blocks_[b]);
      uint16_t* const v = k + KeyBytes(shape()) / 2;
      readers_.rows.map_keys(*head_.key, stored, memory_.keys);
      if (HasFrames()) TurnByFrame(entry + b * kBlockSize);
      if (HasMean()) AddMean(entry + b * kBlockSize);
      readers_.rows.round_keys(memory_.keys, head_.head_dim, k);
      const uint16_t* const values = stored + key_words;
      if (head_.value == nullptr) {
        std::memcpy(v, values, int64_t{2} * kBlockSize * width_);
      } else {
        readers_.rows.map_values(*head_.value, values, v);
      }
    }
  }

 private:
  bool HasFrames() const { return !frames_.maps.empty(); }
  bool HasMean() const { return frames_.mean_angles.n_pairs > 0; }
  float* KeysOf(int channel) const { return memory_.keys + channel * kBlockSize; }

  const uint16_t* PlainBlock(int block) {
    const PackedRun* const before = run_;
    run_ = params_.packed == nullptr ? nullptr : FindRun(*params_.packed, block, &run_idx_);
    if (run_ == nullptr) return reinterpret_cast<const uint16_t*>(params_.blocks[block]);
    if (run_ != before) view_ = ViewRun(params_, *run_);
    const int64_t n = int64_t{kBlockSize} * (params_.shape.rank_k + params_.shape.rank_v);
    readers_.sealed(view_, params_.blocks[block], block - run_->first_block, memory_.values);
    kernels_.elementwise.convert(memory_.values, n, DType::kBf16, memory_.stored);
    return memory_.stored;
  }

  // Gives keys their offsets back and turns them by the start of the frame, but for absolute pairs.
  void TurnByFrame(int entry) const {
    const int half = frames_.half;
    const int start = entry - (entry + frames_.first_place) % kFramePositions;
    const int64_t from = int64_t{frames_.first_position + start} * half;
    const float* const offset = frames_.key_offset + int64_t{head_.map} * head_.head_dim;
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

  void AddMean(int first) const {
    const float* const mean = frames_.turning_mean + int64_t{head_.map} * head_.head_dim;
    const int n_pairs = frames_.mean_angles.n_pairs;
    for (int t = 0; t < kBlockSize; ++t) {
      // Entries that are not there yet turn like the last one; nobody sees them.
      const int64_t entry = std::min(first + t, params_.kv_end - 1);
      const int64_t from = (frames_.first_position + entry) * frames_.half;
      for (int i = 0; i < n_pairs; ++i) {
        memory_.cos[i * kBlockSize + t] = unit_ * frames_.cos[from + i];
        memory_.sin[i * kBlockSize + t] = unit_ * frames_.sin[from + i];
      }
    }
    for (int i = 0; i < n_pairs; ++i) {
      const float x = mean[i], y = mean[frames_.half + i];
      const float *const c = memory_.cos + i * kBlockSize, *const s = memory_.sin + i * kBlockSize;
      float *const to = KeysOf(i), *const of_pair = KeysOf(frames_.half + i);
      for (int t = 0; t < kBlockSize; ++t) {
        to[t] += x * c[t] - y * s[t];
        of_pair[t] += y * c[t] + x * s[t];
      }
    }
  }

  const FrameKernels& kernels_;
  const RebuildReaders& readers_;
  const RebuiltHead& head_;
  const FramesOfHead& frames_;
  const AttendParams& params_;
  const RebuiltMemory& memory_;
  float unit_;  // what takes the amplitude off cosines and sines
  int width_;   // of values
  int run_idx_ = 0;
  const PackedRun* run_ = nullptr;
  PackedRunView view_;
  std::byte* blocks_[kRebuiltBlocks];
};

}  // namespace

bool IsWorthRebuilding(const BlockShape& shape, int head_dim, bool turns, int n_rows) {
  constexpr int kFewestRows = 128;
  // Plain blocks have multiples of 16 channels.
  if (n_rows < kFewestRows || head_dim % 16 != 0) return false;
  if (turns) return true;
  const int64_t n_channels = shape.rank_k + shape.rank_v;
  const int64_t n_saved = n_channels - 2 * head_dim;
  return n_saved * n_rows >= 2 * n_channels * head_dim;
}

int64_t RebuiltScratchBytes(const BlockShape& shape, int head_dim, int n_rows) {
  return RebuiltMemory(shape, head_dim, n_rows, nullptr).n_bytes;
}

void AttendRebuilt(const FrameKernels& kernels, const RebuildReaders& readers,
                   const RebuiltHead& head, const FramesOfHead& frames,
                   const RebuiltQueries& queries, const AttendParams& p,
                   const FrameScratch& scratch) {
  KVL_DCHECK(p.scores == nullptr && p.shape.row_type == DType::kBf16);
  const RebuiltMemory memory(p.shape, head.head_dim, p.n_rows, scratch.own);
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  const int begin =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (begin >= end) return kernels.attend.attend(p, scratch.kernel);  // which sees nothing
  const int d = head.head_dim;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const int64_t from =
        row / p.gqa_group * queries.token_stride + row % p.gqa_group * queries.row_stride;
    std::memcpy(memory.q + row * d, queries.first + 2 * from, 2 * d);
  }
  BlockRebuilder rebuilder(kernels, readers, head, frames, p, memory);
  AttendParams rebuilt = p;
  rebuilt.shape = rebuilder.shape();
  rebuilt.packed = nullptr;
  rebuilt.mean = {};
  rebuilt.q = memory.q;
  rebuilt.q_stride = d;
  rebuilt.blocks = rebuilder.blocks();
  rebuilt.kv_begin = 0;
  if (head.output != nullptr) {
    rebuilt.o = memory.o;
    rebuilt.o_stride = d;
  }
  for (int entry = begin, next; entry < end; entry = next) {
    next = entry + kRebuiltBlocks * kBlockSize;
    {
      const OptionalTimer timer(scratch.rebuilding);
      rebuilder.Make(entry, (std::min(end, next) - entry + kBlockSize - 1) / kBlockSize);
    }
    rebuilt.kv_end = std::min(p.kv_end, next) - entry;
    rebuilt.first_visible = p.first_visible - entry;
    rebuilt.continues = entry > begin;
    kernels.attend.attend(rebuilt, scratch.kernel);
  }
  if (head.output == nullptr) return;
  LinearParams product;
  product.w = head.output;
  product.n_rows = p.n_rows;
  product.x_type = DType::kF32;
  product.x = memory.o;
  product.x_stride = d;
  product.y = memory.outputs;
  product.y_stride = p.shape.rank_v;
  kernels.linear->RunOnWorker(product, kernels.worker_id);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    std::memcpy(p.o + row * p.o_stride, memory.outputs + row * p.shape.rank_v,
                sizeof(float) * p.shape.rank_v);
  }
}

}  // namespace kvlathe

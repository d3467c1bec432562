#include "attention/latents.h"

#include <algorithm>
#include <limits>

#include "attention/partial.h"

namespace kvlathe {
namespace {

// Blocks that are plain at a time: 128 KiB at head_dim 128 in Bf16, an eighth of a Zen 4 L2. A
// merge of partial results per 256 entries is below a hundredth of the work on them.
constexpr int kTileBlocks = 4;
constexpr int kTileEntries = kTileBlocks * kBlockSize;

BlockShape TileShape(const BlockShape& stored, const LatentHead& head) {
  return {head.map.head_dim, stored.rank_v, stored.row_type};
}

// Angles of one block by the positions of its entries, of which n are there.
KeyRotation GatherAngles(const LatentHead& head, int block, int n, float* angles) {
  const int half = head.rotation.half;
  float* const cos = angles;
  float* const sin = angles + int64_t{kBlockSize} * half;
  const int32_t* positions = head.positions.positions(block);
  for (int t = 0; t < kBlockSize; ++t) {
    // Entries that are not there yet turn like the last one; nobody sees them.
    const int64_t from = int64_t{positions[std::min(t, n - 1)]} * half;
    for (int i = 0; i < half; ++i) {
      cos[KeyOffset(t, i)] = head.cos[from + i];
      sin[KeyOffset(t, i)] = head.sin[from + i];
    }
  }
  return {cos, sin, half, head.rotation.way_back};
}

// Makes blocks plain, in ascending order.
class TileReader {
 public:
  TileReader(ReadLatentBlock read, const LatentHead& head, const AttendParams& params,
             std::byte* scratch, float* angles)
      : read_(read), head_(head), params_(params), scratch_(scratch), angles_(angles) {}

  const std::byte* Read(int block, std::byte* tile) {
    LatentBlock b = {.shape = params_.shape,
                     .map = head_.map,
                     .rotation = head_.rotation,
                     .block = params_.blocks[block],
                     .tile = tile};
    if (b.rotation.half > 0) {
      b.rotation =
          head_.positions.empty()
              ? head_.rotation.From(block)
              : GatherAngles(head_, block,
                             std::min(kBlockSize, params_.kv_end - block * kBlockSize), angles_);
    }
    const PackedRun* const before = run_;
    run_ = params_.packed == nullptr ? nullptr : FindRun(*params_.packed, block, &run_idx_);
    if (run_ != nullptr) {
      if (run_ != before) view_ = ViewRun(params_, *run_);
      b.run = &view_;
      b.block_idx = block - run_->first_block;
    }
    read_(b, scratch_);
    return tile;
  }

 private:
  ReadLatentBlock read_;
  const LatentHead& head_;
  const AttendParams& params_;
  std::byte* scratch_;
  float* angles_;
  int run_idx_ = 0;
  const PackedRun* run_ = nullptr;
  PackedRunView view_;
};

// From the order of K in a block of n_dims to that of V.
template <typename Element>
void ToValueOrder(const Element* from, int n_dims, Element* to) {
  const BlockShape shape = {.rank_v = n_dims};
  for (int i = 0; i < n_dims; ++i) {
    for (int t = 0; t < kBlockSize; ++t) to[ValueOffset(shape, t, i)] = from[KeyOffset(t, i)];
  }
}

// Makes blocks of rotated runs plain, in ascending order; others are.
class RotatedReader {
 public:
  RotatedReader(ReadLatentBlock read, const AttendParams& params, std::byte* scratch,
                std::byte* spare)
      : read_(read), params_(params), scratch_(scratch), spare_(spare) {}

  const std::byte* Read(int block, std::byte* tile) {
    const PackedHead& head = *params_.packed;
    if (FindRun(head, block, &run_idx_) == nullptr) return params_.blocks[block];
    const BlockShape& full = params_.shape;
    const PackedShape packed = {.format = head.format,
                                .rank_k = full.rank_k,
                                .rank_v = full.rank_v,
                                .row_type = full.row_type};
    const std::byte* const rotations = head.runs[0].record;
    ReadSide(full.rank_k, SvdRank(packed, full.rank_k), rotations, params_.blocks[block], tile);
    ReadSide(full.rank_v, SvdRank(packed, full.rank_v), rotations + SvdValueRotationOffset(packed),
             params_.blocks[block] + SvdValueOffset(packed), spare_);
    std::byte* const values = tile + KeyBytes(full);
    if (full.row_type == DType::kF32) {
      ToValueOrder(reinterpret_cast<const float*>(spare_), full.rank_v,
                   reinterpret_cast<float*>(values));
    } else {
      ToValueOrder(reinterpret_cast<const uint16_t*>(spare_), full.rank_v,
                   reinterpret_cast<uint16_t*>(values));
    }
    return tile;
  }

 private:
  // Rows of `rank` numbers times the transposed rotation [dim][rank].
  void ReadSide(int dim, int rank, const std::byte* rotation, const std::byte* rows,
                std::byte* to) const {
    static constexpr float kNoOffset[256] = {};
    read_({.shape = {rank, 0, params_.shape.row_type},
           .map = {rank, dim, rotation, kNoOffset},
           .block = rows,
           .tile = to},
          scratch_);
  }

  ReadLatentBlock read_;
  const AttendParams& params_;
  std::byte* scratch_;
  std::byte* spare_;
  int run_idx_ = 0;
};

void ClearRows(const AttendParams& p) {
  for (int row = 0; row < p.n_rows; ++row) {
    std::fill_n(p.o + row * p.o_stride, p.shape.rank_v, 0.0f);
    p.row_max[row] = -std::numeric_limits<float>::infinity();
    p.row_sum[row] = 0;
  }
}

// Attends to plain blocks of `shape` that the reader makes of those of `p`. `memory` holds
// kTileBlocks of them and partial results of the rows.
template <typename Reader>
void AttendTiles(const AttendKernels& kernels, const AttendParams& p, const BlockShape& shape,
                 Reader* reader, std::byte* memory, std::byte* kernel_scratch) {
  const int64_t tile_bytes = BlockBytes(shape);
  const PartialRows more = PartialAt(reinterpret_cast<float*>(memory + kTileBlocks * tile_bytes),
                                     p.n_rows, shape.rank_v);
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  int entry =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (entry >= end) return ClearRows(p);
  for (bool is_first = true; entry < end; is_first = false) {
    // Whole multiples of the tiles, so that a row's sums do not depend on where an item begins.
    const int tile_end = std::min(end, (entry / kTileEntries + 1) * kTileEntries);
    const std::byte* blocks[kTileBlocks];
    for (int at = entry, i = 0; at < tile_end; at += kBlockSize, ++i) {
      blocks[i] = reader->Read(at / kBlockSize, memory + i * tile_bytes);
    }
    AttendParams tile = p;
    tile.shape = shape;
    tile.blocks = blocks;
    tile.packed = nullptr;
    tile.kv_begin = 0;
    tile.kv_end = tile_end - entry;
    tile.first_visible = p.first_visible - entry;
    if (p.scores != nullptr) tile.scores = p.scores + (entry - p.kv_begin);
    if (!is_first) {
      tile.o = more.o;
      tile.o_stride = shape.rank_v;
      tile.row_max = more.row_max;
      tile.row_sum = more.row_sum;
    }
    kernels.attend(tile, kernel_scratch);
    if (!is_first) MergePartial(more, p.n_rows, shape.rank_v, {p.o, p.row_max, p.row_sum});
    entry = tile_end;
  }
}

int64_t AngleBytes(const LatentHead& head) {
  return int64_t{2} * 4 * kBlockSize * head.rotation.half;
}

}  // namespace

int64_t LatentScratchBytes(const BlockShape& shape, const LatentHead& head,
                           int64_t max_item_floats) {
  return kLatentScratchBytes + AngleBytes(head) + kTileBlocks * BlockBytes(TileShape(shape, head)) +
         4 * max_item_floats;
}

void AttendLatents(const AttendKernels& kernels, ReadLatentBlock read, const LatentHead& head,
                   const AttendParams& p, const LatentScratch& scratch) {
  std::byte* const angles = scratch.own + kLatentScratchBytes;
  std::byte* const tiles = angles + AngleBytes(head);
  const BlockShape shape = TileShape(p.shape, head);
  TileReader reader(read, head, p, scratch.own, reinterpret_cast<float*>(angles));
  AttendTiles(kernels, p, shape, &reader, tiles, scratch.kernel);
}

int64_t RotatedScratchBytes(const BlockShape& shape, int64_t max_item_floats) {
  return kLatentScratchBytes + BlockBytes(shape) + kTileBlocks * BlockBytes(shape) +
         4 * max_item_floats;
}

void AttendRotatedRuns(const AttendKernels& kernels, ReadLatentBlock read, const AttendParams& p,
                       const LatentScratch& scratch) {
  std::byte* const spare = scratch.own + kLatentScratchBytes;
  RotatedReader reader(read, p, scratch.own, spare);
  AttendTiles(kernels, p, p.shape, &reader, spare + BlockBytes(p.shape), scratch.kernel);
}

}  // namespace kvlathe

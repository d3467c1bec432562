#include "cpu/attention/latents.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "base/threads.h"
#include "cpu/attention/partial.h"

namespace kvlathe {
namespace {

// Blocks that are plain at a time: 128 KiB at head_dim 128 in Bf16, an eighth of a Zen 4 L2. A
// merge of partial results per 256 entries is below a hundredth of the work on them.
constexpr int kTileBlocks = 4;
constexpr int kTileEntries = kTileBlocks * kBlockSize;
// Numbers of a value that the kernels take at a time.
constexpr int kPassWidth = kMaxRowRank;

// Of plain blocks; rank_v is the width of whole values, of which a tile holds kPassWidth.
BlockShape TileShape(const BlockShape& stored, const LatentHead& head) {
  return {head.map.head_dim, head.output_width(stored.rank_v), stored.row_type};
}

int64_t TileBytes(const BlockShape& shape) {
  return BlockBytes({shape.rank_k, std::min(shape.rank_v, kPassWidth), shape.row_type});
}

// Angles of one block by the positions of its entries, of which n are there.
KeyRotation GatherAngles(const LatentHead& head, int block, int n, float* angles) {
  const int half = head.rotation.half;
  float* const cos = angles;
  float* const sin = angles + int64_t{kBlockSize} * half;
  const bool is_sorted = head.sorted.Has(block);
  const int64_t first = int64_t{block} * kBlockSize;
  for (int t = 0; t < kBlockSize; ++t) {
    // Entries that are not there yet turn like the last one; nobody sees them.
    const int64_t entry = first + std::min(t, n - 1);
    const int64_t from =
        int64_t{is_sorted ? head.sorted.at(entry) : head.positions.position(entry)} * half;
    for (int i = 0; i < half; ++i) {
      cos[KeyOffset(t, i)] = head.cos[from + i];
      sin[KeyOffset(t, i)] = head.sin[from + i];
    }
  }
  return {cos, sin, half, head.rotation.way_back};
}

// Of one block, which `angles` may be written for.
KeyRotation RotationAt(const LatentHead& head, int block, int kv_end, float* angles) {
  if (head.rotation.half == 0) return head.rotation;
  if (head.positions.empty() && !head.sorted.Has(block)) return head.rotation.From(block);
  return GatherAngles(head, block, std::min(kBlockSize, kv_end - block * kBlockSize), angles);
}

// Tiles have all numbers of the values.
struct WholeValues {
  static void PlaceValues(int /*block*/, Range /*columns*/, std::byte* /*tile*/) {}
};

// Makes blocks plain, in ascending order.
class TileReader : public WholeValues {
 public:
  TileReader(ReadLatentBlock read, const LatentHead& head, const AttendParams& params,
             std::byte* scratch, float* angles)
      : read_(read), head_(head), params_(params), scratch_(scratch), angles_(angles) {}

  const std::byte* Read(int block, std::byte* tile) {
    LatentBlock b = {.shape = params_.shape,
                     .map = head_.map,
                     .rotation = RotationAt(head_, block, params_.kv_end, angles_),
                     .block = params_.blocks[block],
                     .tile = tile};
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

// What SliceReader needs beside the scratch of its readers.
struct SliceMemory {
  std::byte* keys;    // latents of a block, as K of a plain one
  std::byte* plain;   // a sealed block of a slice
  std::byte* values;  // of kTileBlocks blocks, each as V of a plain one

  SliceMemory(const BlockShape& stored, const LatentHead& head, std::byte* memory)
      : keys(memory),
        plain(keys + KeyBytes(AllSlices(stored, head))),
        values(plain + BlockBytes(stored)) {}

  // The block that all slices side by side would make.
  static BlockShape AllSlices(const BlockShape& stored, const LatentHead& head) {
    return {head.map.rank, head.output_width(stored.rank_v), stored.row_type};
  }
  static int64_t ValueBytes(const BlockShape& stored, const LatentHead& head) {
    const BlockShape all = AllSlices(stored, head);
    return BlockBytes(all) - KeyBytes(all);
  }
  static int64_t n_bytes(const BlockShape& stored, const LatentHead& head) {
    if (head.slices.empty()) return 0;
    return KeyBytes(AllSlices(stored, head)) + BlockBytes(stored) +
           kTileBlocks * ValueBytes(stored, head);
  }
};

// Makes plain blocks of the slices of several heads, in ascending order: keys at once, values
// column by column.
class SliceReader {
 public:
  SliceReader(const LatentReaders& readers, const LatentHead& head, const AttendParams& params,
              std::byte* scratch, float* angles, const SliceMemory& memory)
      : readers_(readers),
        head_(head),
        params_(params),
        all_(SliceMemory::AllSlices(params.shape, head)),
        pair_bytes_(2 * SizeOf(params.shape.row_type)),
        scratch_(scratch),
        angles_(angles),
        memory_(memory) {}

  const std::byte* Read(int block, std::byte* tile) {
    const int rank_v = params_.shape.rank_v;
    const int64_t key_bytes = KeyBytes(params_.shape);
    const int first_run_idx = run_idx_;  // of all slices: heads are sealed together
    for (int i = 0; i < static_cast<int>(head_.slices.size()); ++i) {
      run_idx_ = first_run_idx;
      const std::byte* const rows = PlainSlice(head_.slices[i], block);
      std::memcpy(memory_.keys + i * key_bytes, rows, key_bytes);
      CopyColumns(rows + key_bytes, rank_v, 0, rank_v, ValuesOf(block), all_.rank_v, i * rank_v);
    }
    readers_.block({.shape = {all_.rank_k, 0, all_.row_type},
                    .map = head_.map,
                    .rotation = RotationAt(head_, block, params_.kv_end, angles_),
                    .block = memory_.keys,
                    .tile = tile},
                   scratch_);
    return tile;
  }

  // Behind the keys of a block that was read.
  void PlaceValues(int block, Range columns, std::byte* tile) const {
    const auto first = static_cast<int>(columns.begin);
    const auto n = static_cast<int>(columns.end - columns.begin);
    const BlockShape keys = {head_.map.head_dim, 0, all_.row_type};
    CopyColumns(ValuesOf(block), all_.rank_v, first, n, tile + KeyBytes(keys), n, 0);
  }

 private:
  const std::byte* PlainSlice(const LatentSlice& slice, int block) {
    const std::byte* const stored = slice.blocks[block];
    const PackedRun* const run = FindRun(slice.packed, block, &run_idx_);
    if (run == nullptr) return stored;
    AttendParams own = params_;
    own.packed = &slice.packed;
    auto* const numbers = reinterpret_cast<float*>(scratch_);
    readers_.sealed(ViewRun(own, *run), stored, block - run->first_block, numbers);
    const BlockShape& shape = params_.shape;
    ConvertFromFloat(shape.row_type, numbers, int64_t{kBlockSize} * (shape.rank_k + shape.rank_v),
                     memory_.plain);
    return memory_.plain;
  }

  std::byte* ValuesOf(int block) const {
    return memory_.values + (block % kTileBlocks) * (BlockBytes(all_) - KeyBytes(all_));
  }

  // n columns of V in a block of `from_width`, to another.
  void CopyColumns(const std::byte* from, int from_width, int from_first, int n, std::byte* to,
                   int to_width, int to_first) const {
    for (int64_t pair = 0; pair < kBlockSize / 2; ++pair) {
      std::memcpy(to + (pair * to_width + to_first) * pair_bytes_,
                  from + (pair * from_width + from_first) * pair_bytes_, n * pair_bytes_);
    }
  }

  const LatentReaders& readers_;
  const LatentHead& head_;
  const AttendParams& params_;
  BlockShape all_;
  int64_t pair_bytes_;  // of one number of V of two entries
  std::byte* scratch_;
  float* angles_;
  SliceMemory memory_;
  int run_idx_ = 0;
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
class RotatedReader : public WholeValues {
 public:
  RotatedReader(ReadLatentBlock read, const AttendParams& params, std::byte* scratch,
                std::byte* spare)
      : read_(read), params_(params), scratch_(scratch), spare_(spare) {}

  const std::byte* Read(int block, std::byte* tile) {
    const PackedHead& head = *params_.packed;
    if (FindRun(head, block, &run_idx_) == nullptr) return params_.blocks[block];
    const BlockShape& full = params_.shape;
    const PackedShape packed = MakePackedShape(head.format, full, head.storage, {});
    const auto& ranks = std::get<RotatedRanks>(packed.storage);
    const std::byte* const rotations = head.runs[0].record;
    ReadSide(full.rank_k, ranks.k, rotations, params_.blocks[block], tile);
    ReadSide(full.rank_v, ranks.v, rotations + ValueRotationOffset(ranks, packed),
             params_.blocks[block] + RotatedValueOffset(ranks, packed), spare_);
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
    static constexpr float kNoOffset[kMaxPackedRank] = {};
    read_({.shape = {rank, 0, params_.shape.row_type},
           .map = {.rank = rank,
                   .head_dim = dim,
                   .key_dim = dim,
                   .columns = rotation,
                   .offset = kNoOffset},
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

void ClearRows(const AttendParams& p, int width) {
  for (int row = 0; row < p.n_rows; ++row) {
    std::fill_n(p.o + row * p.o_stride, width, 0.0f);
    p.row_max[row] = -std::numeric_limits<float>::infinity();
    p.row_sum[row] = 0;
  }
}

// Attends to plain blocks of `shape` that the reader makes of those of `p`. `memory` holds
// kTileBlocks tiles and partial results of the rows.
template <typename Reader>
void AttendTiles(const AttendKernels& kernels, const AttendParams& p, const BlockShape& shape,
                 Reader* reader, std::byte* memory, const LatentScratch& scratch) {
  const int64_t tile_bytes = TileBytes(shape);
  const int width = shape.rank_v;
  const PartialRows more =
      PartialAt(reinterpret_cast<float*>(memory + kTileBlocks * tile_bytes), p.n_rows, width);
  const int end = std::min(p.kv_end, p.first_visible + (p.n_rows - 1) / p.gqa_group);
  int entry =
      std::max(p.kv_begin, std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize);
  if (entry >= end) return ClearRows(p, width);
  for (bool is_first = true; entry < end; is_first = false) {
    // Whole multiples of the tiles, so that a row's sums do not depend on where an item begins.
    const int tile_end = std::min(end, (entry / kTileEntries + 1) * kTileEntries);
    const std::byte* blocks[kTileBlocks];
    const int first_block = entry / kBlockSize;
    const int n_blocks = (tile_end - entry + kBlockSize - 1) / kBlockSize;
    {
      const OptionalTimer timer(scratch.rebuilding);
      for (int i = 0; i < n_blocks; ++i) {
        blocks[i] = reader->Read(first_block + i, memory + i * tile_bytes);
      }
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
      tile.o_stride = width;
      tile.row_max = more.row_max;
      tile.row_sum = more.row_sum;
    }
    // Scores are computed again for each pass; they come out the same.
    for (int first = 0; first < width; first += kPassWidth) {
      tile.shape.rank_v = std::min(kPassWidth, width - first);
      for (int i = 0; i < n_blocks; ++i) {
        reader->PlaceValues(first_block + i, {first, first + tile.shape.rank_v},
                            memory + i * tile_bytes);
      }
      kernels.attend(tile, scratch.kernel);
      tile.o += kPassWidth;
      tile.scores = nullptr;
    }
    if (!is_first) MergePartial(more, p.n_rows, width, {p.o, p.row_max, p.row_sum}, p.o_stride);
    entry = tile_end;
  }
}

int64_t AngleBytes(const LatentHead& head) {
  return int64_t{2} * 4 * kBlockSize * head.rotation.half;
}

// Of a reader of latents.
int64_t ReaderBytes(const LatentHead& head) {
  return kLatentScratchBytes + int64_t{4} * kBlockSize * std::max(0, head.map.rank - kMaxRowRank);
}

}  // namespace

int64_t LatentScratchBytes(const BlockShape& shape, const LatentHead& head,
                           int64_t max_item_floats) {
  return ReaderBytes(head) + AngleBytes(head) + SliceMemory::n_bytes(shape, head) +
         kTileBlocks * TileBytes(TileShape(shape, head)) + 4 * max_item_floats;
}

void AttendLatents(const AttendKernels& kernels, const LatentReaders& readers,
                   const LatentHead& head, const AttendParams& p, const LatentScratch& scratch) {
  std::byte* const angles = scratch.own + ReaderBytes(head);
  std::byte* const slices = angles + AngleBytes(head);
  std::byte* const tiles = slices + SliceMemory::n_bytes(p.shape, head);
  auto* const own_angles = reinterpret_cast<float*>(angles);
  const BlockShape shape = TileShape(p.shape, head);
  if (head.slices.empty()) {
    TileReader reader(readers.block, head, p, scratch.own, own_angles);
    AttendTiles(kernels, p, shape, &reader, tiles, scratch);
  } else {
    SliceReader reader(readers, head, p, scratch.own, own_angles,
                       SliceMemory(p.shape, head, slices));
    AttendTiles(kernels, p, shape, &reader, tiles, scratch);
  }
}

int64_t RotatedScratchBytes(const BlockShape& shape, int64_t max_item_floats) {
  return kLatentScratchBytes + BlockBytes(shape) + kTileBlocks * TileBytes(shape) +
         4 * max_item_floats;
}

void AttendRotatedRuns(const AttendKernels& kernels, ReadLatentBlock read, const AttendParams& p,
                       const LatentScratch& scratch) {
  std::byte* const spare = scratch.own + kLatentScratchBytes;
  RotatedReader reader(read, p, scratch.own, spare);
  AttendTiles(kernels, p, p.shape, &reader, spare + BlockBytes(p.shape), scratch);
}

}  // namespace kvlathe

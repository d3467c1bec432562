// What a layer asks of a backend, one batch at a time. Plans are plain data that the host makes,
// and that tests look at; the backend only obeys. Rows are row-major, strides are in elements. What
// lies in caches is named by ids of their device, weights by their ids, and activations and tables
// by places in the machine's memory. Spans and pointers are parts of the plan itself, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/threads.h"
#include "format/open_entry.h"
#include "format/packed_layout.h"
#include "machine/device.h"
#include "machine/kept_entries.h"
#include "machine/residents.h"
#include "machine/sealed_runs.h"
#include "machine/xielu_numbers.h"
#include "tensor/dtype.h"

namespace kvlathe {

// y = x W^T + bias.
struct ProductPlan {
  WeightId w;
  int64_t n_rows = 0;
  ObjectPlace x;  // [n_rows, n_in]
  int64_t x_stride = 0;
  DType x_type = DType::kF32;  // one that Residents::Multiplies with w
  ObjectPlace bias;            // [n_out] F32; null: none
  ObjectPlace y;               // [n_rows, n_out]
  int64_t y_stride = 0;
  DType y_type = DType::kF32;  // kF32, or kBf16 (rounded once from the F32 sum)
  bool accumulate = false;     // y += (kF32 only)
};

enum class NormFunction {
  kRms,    // x / sqrt(mean(x^2) + eps) * weight
  kLayer,  // (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
  kNone,   // x: rows are converted to out_type alone
};

// Each of n_rows rows of n_groups * n_dims numbers, `stride` apart, is normalised in groups of
// n_dims.
struct NormPlan {
  NormFunction function = NormFunction::kRms;
  ObjectPlace x;  // F32
  int64_t n_rows = 0;
  int64_t n_groups = 1;
  int64_t n_dims = 0;
  int64_t stride = 0;              // of x and of out
  ObjectPlace weight;              // [n_dims] F32, or [n_groups, n_dims]; null: 1
  bool has_group_weights = false;  // each group has weights of its own
  ObjectPlace bias;                // [n_dims] F32, of kLayer; null: 0
  float eps = 0;
  DType out_type = DType::kF32;
  ObjectPlace out;       // x itself where out_type is kF32
  ObjectPlace added_to;  // [n_rows, stride] F32, gets the result added, which is kF32 then
};

// What stands between the two products of a feed-forward part (MlpKind of model/config.h).
enum class GateKind { kSwiglu, kGegluTanh, kGelu, kGeluTanh, kRelu2, kXielu, kClampedSwiglu };

inline bool HasGate(GateKind kind) {
  return kind == GateKind::kSwiglu || kind == GateKind::kGegluTanh ||
         kind == GateKind::kClampedSwiglu;
}

struct GatePlan {
  GateKind kind = GateKind::kSwiglu;
  ObjectPlace x;  // [n_rows, ffn_dim] F32, with a gate [n_rows, 2 ffn_dim], gates first
  int64_t n_rows = 0;
  int64_t ffn_dim = 0;
  DType out_type = DType::kF32;
  ObjectPlace out;          // [n_rows, ffn_dim]
  XieluNumbers xielu = {};  // kXielu

  int64_t n_in() const { return HasGate(kind) ? 2 * ffn_dim : ffn_dim; }
};

// Numbers x [n_numbers] F32, in place, become cap tanh(x / cap).
struct CapPlan {
  ObjectPlace x;
  int64_t n_numbers = 0;
  float cap = 0;  // above 0
};

// A token of a step, one row of every activation.
struct TokenPlace {
  int32_t token_id;
  int position;           // in its sequence, from 0
  bool meets_whole_keys;  // its key is stored whole, and so are those that its queries see
};

// A row of the residual stream for each token: the embedding of its word times `scale`, plus that
// of its position.
struct EmbedPlan {
  std::span<const TokenPlace> tokens;
  WeightId tied_words;  // [vocab_size, n_dims], a matrix that is multiplied with too; null: words
  TableId words;        // [vocab_size, n_dims]
  // Words that the matrix or table holds, from its row 0 on; the rows of others are zeros.
  Range held_words = {0, std::numeric_limits<int64_t>::max()};
  float scale = 1;
  TableId positions;  // [n_positions, n_dims]; null: none
  int64_t n_dims = 0;
  ObjectPlace out;  // [n_tokens, n_dims] F32
};

// Adds up x over all machines that hold parts of the same matrices, in the order of their ranks, so
// that all of them have the same bits.
struct SumPlan {
  ObjectPlace x;  // [n_numbers] F32, the sum in the end
  int64_t n_numbers = 0;
  ObjectPlace added_to;  // [n_numbers] F32, to which the sum is added; null: none
};

// Rows of one KV head from the step's first token on.
struct HeadRows {
  ObjectPlace first;
  int64_t stride = 0;
};

// What happens to the queries and the key of one KV head.
struct HeadTurn {
  ObjectPlace q;  // gqa_group F32 rows side by side, RotatePlan::stride from token to token
  ObjectPlace k;
  // gqa_group rows of turned_q_width numbers a token, turned_q_stride from token to token. A row is
  // zero but for the query, which begins at turned_q_place.
  ObjectPlace turned_q;
  int64_t turned_q_stride = 0;
  int turned_q_width = 0;
  int turned_q_place = 0;
  HeadRows turned_k;
  ObjectPlace key_offset;  // [head_dim] F32, taken off before a key is rounded; null: none
  // [head_dim] F32, taken off keys before they turn, from RotatePlan::first_less_mean on; null:
  // none
  ObjectPlace turning_mean;
  // Products of turned rows with a basis, of tokens that do not meet whole keys; null: none.
  WeightId query_map;    // [n_out, head_dim]: rank_k rows, and those of a turning mean's weights
  ObjectPlace mapped_q;  // gqa_group rows of n_out, mapped_q_stride from token to token
  int64_t mapped_q_stride = 0;
  WeightId key_map;      // [rank_k, keys_per_map * head_dim]; null: another's
  HeadRows joined_k;     // turned keys of all heads that the map joins
  ObjectPlace mapped_k;  // [n_tokens, rank_k]
  HeadRows added_v;      // as wide, added to mapped_k; null: nothing is
};

// Turns queries and keys of a layer to their positions, and maps them to the basis of the cache.
struct RotatePlan {
  std::span<const TokenPlace> tokens;
  std::span<const HeadTurn> heads;  // by KV head
  int gqa_group = 1;
  int head_dim = 0;
  int64_t stride = 0;  // of a token's rows in HeadTurn::q and k
  // [head_dim] F32 that queries are multiplied by behind the rotation; null: 1.
  ObjectPlace query_weights;
  // Rotary position embedding of the first rope_dim channels (Su et al. 2021, the half layout):
  // [n_positions, rope_dim / 2] F32.
  ObjectPlace cos, sin;
  ObjectPlace key_cos, key_sin;  // those of keys
  int rope_dim = 0;
  // Keys of positions from here on stay as they are: the cache keeps them from before RoPE. Then
  // HeadTurn::key_offset is taken off these keys only; where all keys turn, it is taken off all
  // from first_less_offset on.
  int first_unturned = kAllTurn;
  int first_less_mean = 0;  // the first position whose key loses HeadTurn::turning_mean
  // Where all keys turn, the first whose key loses HeadTurn::key_offset: the first of the frames.
  int first_less_offset = 0;
  int zeroed_channel = -1;  // of turned rows; -1: none
  // The channel is zeroed in the first query of each KV head only: keys and other queries keep it.
  bool zeroes_first_query_only = false;
  int keys_per_map = 1;  // KV heads whose keys a map joins
  DType out_type = DType::kF32;

  static constexpr int kAllTurn = std::numeric_limits<int>::max();
};

// Multiplies what attention puts out for each query head of every token, into rows of y_width
// numbers.
struct HeadProductsPlan {
  int64_t n_tokens = 0;
  struct Head {
    WeightId w;
    ObjectPlace x;  // of the first token
    ObjectPlace y;
  };
  std::span<const Head> heads;
  int64_t x_stride = 0, y_stride = 0;
  DType type = DType::kF32;  // of x and of y
};

// Rows of the step that are kept as they are.
struct CopyPlan {
  ObjectPlace from;  // in the machine's memory
  ObjectPlace to;    // in the cache
  int64_t n_bytes = 0;
};

// Rows of the step that become entries [first_slot, first_slot + n_rows) of a block.
struct BlockRows {
  BlockShape shape;
  ObjectId block;
  bool is_coded = false;  // the block gets codes in place of rows (SplitBitsCodec)
  int first_slot = 0;
  int n_rows = 0;
  ObjectPlace k;  // [n_rows, rank_k] row_type
  int64_t k_stride = 0;
  ObjectPlace v;  // [n_rows, rank_v] row_type
  int64_t v_stride = 0;
};

// Writes new rows of (sequence, KV head) pairs. One worker takes all rows of a pair, in order,
// because no other pair has its blocks.
struct AppendPlan {
  struct Item {
    Device* device = nullptr;
    int sequence = 0;                  // number in the step, by which Finish tells of it
    int first_copy = 0, n_copies = 0;  // of `copies`: rows that are kept as they are (sinks)
    int first_rows = 0, n_rows = 0;    // of `rows`
  };
  int layer_idx = 0;
  std::vector<Item> items;
  std::vector<CopyPlan> copies;
  std::vector<BlockRows> rows;

  void Clear() {
    items.clear();
    copies.clear();
    rows.clear();
  }
};

// Adds x x^T of every row x to gram, in the order of the rows; only the upper triangle counts.
struct GramPlan {
  HeadRows rows;
  int64_t n_rows = 0;
  Device* device = nullptr;
  ObjectId gram;  // [n_dims, n_dims] F32
};

// A (sequence, KV head) pair whose positions become entries (format/open_entry.h): keys before
// RoPE and values become the mean of their entry so far. `joins` and `weights` are of its tokens;
// tokens that the sink keeps come first, n_sinks of them.
struct MergeItem {
  Device* device = nullptr;
  ObjectId open_entry;
  int rank_v = 0;
  int64_t n_tokens = 0;
  int64_t n_sinks = 0;
  int n_entries = 0;  // before the step
  const uint8_t* joins = nullptr;
  const float* weights = nullptr;
  ObjectPlace k;  // F32
  ObjectPlace v;
  int64_t first_closed = 0;  // of its tokens among what Backend::MergeRows returns
};

struct MergeRowsPlan {
  std::span<const MergeItem> items;
  MergePlan merge;
  int head_dim = 0;
  int64_t k_stride = 0, v_stride = 0;
  DType row_type = DType::kF32;
};

// One KV head that is to drop entries.
struct PruneHead {
  BlockShape shape;
  std::span<const ObjectId> blocks;
  EntryTableId entries;  // positions and votes
  int n_entries = 0;
  int64_t n_kept = 0;  // where heads keep numbers of their own; 0: PrunePlan::kept
  // Where entries to be dropped are sealed: the sealed runs, and plain blocks to which all that
  // stays is copied. Else empty: rows move in place.
  SealedHead packed;
  std::span<const ObjectId> opened;
  // Where there is no table: the entries to be dropped, rising, which somebody else has chosen.
  std::span<const int> dropped;
};

// The heads of one layer of one sequence: of each, the kept entries become the first ones.
struct PrunePlan {
  Device* device = nullptr;
  int sequence = 0;
  std::span<const PruneHead> heads;
  int pool_kernel = 1;          // votes are averaged over this many neighbouring entries
  bool averages_votes = false;  // votes are divided by how many queries saw the entry
  bool shares_heads = false;    // all heads keep the same entries
  bool restarts_votes = false;  // votes count one prune only, and are zero behind it
  KeptEntries kept;
  bool in_order = false;    // what stays keeps its order; else the last entries fill the gaps
  ClassSizes classes = {};  // of the first entries that stay, which are put in the order of classes
  bool has_coded_rows = false;  // in blocks that are not sealed
  // Whether their positions, as SortedPositions, take the place of the entry tables.
  bool keeps_sorted_positions = false;
  bool has_wide_positions = false;
};

// Blocks of whole keys of one head become blocks of fewer key columns, in place.
struct CutItem {
  Device* device = nullptr;
  BlockShape whole, cut;
  std::span<const ObjectId> blocks;
  int64_t n_entries = 0;
  WeightId map;  // null: the first columns are those that stay
};

// One KV head of a run that becomes packed.
struct SealHeadPlan {
  BlockShape shape;     // as it is stored before
  HeadStorage storage;  // what the codec keeps of it
  // [n_blocks], full. The oldest may be null, which left the window before the run ended: nothing
  // reads their codes any more, and the first block that is there stands in their place, so that
  // scales and factors are those of rows that are seen.
  std::span<const ObjectId> blocks;
  std::span<const ObjectId> packed;  // [n_blocks] PackedBlockBytes, to be written
  ObjectId record;                   // RunRecordBytes, to be written; null where that is 0
};

// One run of one layer of one sequence: SealJob (cpu/kernels/seal/seal.h) with ids.
struct SealRunPlan {
  Device* device = nullptr;
  int sequence = 0;
  std::span<const SealHeadPlan> heads;  // that share the layer record
  int first_head = 0;                   // number of the first in its layer, of the whole model
  ObjectId layer_record;                // LayerRecordBytes; null where that is 0
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;
  EntryClass entry_class = EntryClass::kMiddle;
  uint64_t seed = 0;
  CodebooksId codebooks;
  KeyRotationId rotation;
};

// One head of a run whose format is rotated: OnlineSvdHead (cpu/svd_online.h) with ids.
struct RotatedHeadPlan {
  Device* device = nullptr;
  int sequence = 0;
  PackedShape packed_shape;
  SealHeadPlan head;
  ObjectId rotations;       // the record of the run that has them, where the head's own is null
  ObjectId query_gram;      // null: keys are stacked on nothing
  ObjectPlace output_gram;  // [head_dim, head_dim] F64 in the machine's memory; null: none
  bool is_normalised = false;
};

// Rows of one buffer take each other's places: row i becomes what row from[i] >= i was, in order.
struct TakeRowsPlan {
  ObjectPlace rows;
  int64_t row_bytes = 0;
  std::span<const int64_t> from;
};

// Channels of F32 rows that decide something on the host, where they are [n_rows, n_channels], and
// are zero in the rows from then on.
struct TakeChannelPlan {
  ObjectPlace rows;  // [n_rows, n_dims], dense
  int64_t n_rows = 0;
  int64_t n_dims = 0;
  int channel = 0;         // the first of a row
  int n_channels = 1;      // of a row
  int channels_apart = 0;  // from one of them to the next
};

// Looks for the largest numbers of rows.
struct LargestPlan {
  ObjectPlace rows;  // [n_rows, n_dims] F32, dense
  int64_t n_rows = 0;
  int64_t n_dims = 0;
  static constexpr int kLargest = 64;  // of each row, or all where it has fewer
};

// Those of a row, falling, equal ones by their places.
struct LargestNumbers {
  struct Number {
    float value = 0;
    int32_t place = 0;
  };
  std::vector<Number> numbers;
  bool are_finite = true;  // all numbers of the row; where not, `numbers` means nothing
};

// A sealed run of one head whose rows plain blocks get, block by block, rounded to the shape's
// type. `sealed` has this run alone, from the first of `blocks` on.
struct OpenedRun {
  Device* device = nullptr;
  BlockShape shape;
  SealedHead sealed;
  std::span<const ObjectId> blocks;
  std::span<const ObjectId> plain;  // to be written
};

// A run that was sealed from these plain rows. Compared are the first max_rows of them, but no more
// than were sealed before the last Prune of this sequence and head.
struct ReencodedRun {
  Device* device = nullptr;
  int sequence = 0;
  int kv_head_idx = 0;
  BlockShape shape;
  SealedHead sealed;
  std::span<const ObjectId> blocks;  // of `sealed`
  std::span<const ObjectId> plain;
  int max_rows = 0;
};

// Runs of one format that become packed blocks.
struct SealBatch {
  int layer_idx = 0;
  PackedFormat format;
  DType row_type = DType::kF32;       // of plain rows
  int power_loops = 1;                // of the low-rank solver
  std::span<const SealRunPlan> runs;  // those of a sequence follow each other
};

struct RotatedBatch {
  int layer_idx = 0;
  std::span<const RotatedHeadPlan> heads;  // those of a sequence follow each other
};

}  // namespace kvlathe

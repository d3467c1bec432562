// The schedule says which blocks of a sequence are sealed when (docs/quantization.md, Runs), and
// what that takes.
//
// Entries are the positions behind the sink. While the prompt is read, every prompt_run entries are
// sealed as one run. Where the prompt ends, the full blocks of the unfinished run are sealed; after
// that, every `buffer` entries are. The last NewestEntries() are left out of all this, as if they
// had not come yet. Where entries are dropped after the prompt (RetentionPlan::slack), the full
// blocks of what stays are sealed again as one run, as if the prompt ended there. So the ends of
// runs depend only on positions and on where the prompt ends, and so does which runs of the prompt
// are repaired (SealPlan::repaired_share). Without a SealPlan nothing is ever sealed.
//
// Classes. With SplitBitsCodec::has_classes nothing is sealed before the prompt ends. There the
// entries of each head that are sealed are put in another order: first a quarter of their blocks,
// whose entries got the most attention from the last queries of the prompt; then half of them; then
// the quarter whose entries got the least (EntryClass). Each class is a run with bits of its own,
// and its entries keep the order of their positions. What is sealed later is of the middle class.
//
// Pressure. With SealPlan::has_pressed_runs a run may be decoded and sealed again in fewer bits,
// when memory is short. No length says which runs were: the cache does
// (SequenceCache::pressed_runs).
//
// Where the model decides what merges (CacheLayout::HasRunsOfHeads), heads differ in length. Each
// head then seals the full blocks of its closed entries where the prompt ends, as one run, and
// after that, every `buffer` positions, the oldest `buffer` of its closed entries if it has that
// many. So seal points still depend on positions, but runs depend on the entries of the head.
// Functions that take only positions then speak of heads that never merge.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/cache_layout.h"

namespace kvlathe {

struct HeadInRun;  // kv/cache_objects.h

struct RunExtent {
  int64_t first_block = 0;
  int64_t n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;  // has the low-rank residual of its kind, if there is one
  EntryClass entry_class = EntryClass::kMiddle;
  bool spans_classes = false;  // its blocks are of all classes: RunsByClass() takes it apart
};

// The runs of the classes, in the order of their blocks; the run itself where it is one already.
std::vector<RunExtent> RunsByClass(const RunExtent& run);

// Makes the runs at these places of a sequence's own pressed ones.
void MarkPressed(std::span<const int> places, std::vector<RunExtent>* runs);

// Whether entries are dropped at n_tokens, which lies behind the prompt; runs begin afresh there.
bool StartsAfreshAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);
// Whether some of these entries are sealed, so that those that stay have to be sealed again.
bool SealsAgainAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// How many of n_entries are too new to be sealed. Where SealPlan::most_newest lets them, they are
// a 32nd of the first 2048 and a sixteenth of those behind, less 4: attention gives more weight to
// near entries however many there are, and what they cost in more bits is a smaller share of many.
// They are 4 fewer because most contexts are powers of two and 4 positions are sinks: otherwise the
// last full block of such a context would just not be old enough.
int64_t NewestEntries(const SealPlan& plan, int64_t n_entries);

// How many blocks of each head are sealed once n_tokens positions are there.
int64_t SealedBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// How many blocks of each head hold the sorted entries of a prompt of this length; 0 without
// classes.
int64_t SortedBlocks(const CacheLayout& layout, int64_t n_prompt);

// The first point after n_tokens, counted in positions, at which something may be sealed. A step
// never crosses such a point, so all its queries see the same runs.
int64_t NextSealPoint(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// The run that is sealed when n_tokens positions are there and n_sealed blocks are sealed already;
// its n_blocks is 0 if none is. Where runs begin afresh it replaces all earlier ones.
RunExtent RunEndingAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                      int64_t n_sealed);

// All runs that are sealed once n_tokens positions are there, the oldest first.
std::vector<RunExtent> RunsOf(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// --- For layouts with HasRunsOfHeads(). ---

// The last point up to n_tokens, counted in positions, at which heads were sealed; 0 before the end
// of the prompt.
int64_t LastSealPoint(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);
// The run that a head seals when it reaches n_tokens positions with this many entries and sealed
// blocks; its n_blocks is 0 if it seals nothing.
RunExtent RunOfHeadAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                      int64_t n_entries, int64_t n_sealed_blocks);
std::vector<RunExtent> RunsOf(const CacheLayout& layout, const MergedLength& length);

// --- Bytes. ---

PackedShape PackedShapeOf(const CacheLayout& layout, int layer_idx, int kv_head_idx,
                          const RunExtent& run);
PackedShape PackedShapeOf(const CacheLayout& layout, const HeadInRun& head, const RunExtent& run);

// Bytes of the objects of a run: of one block of a head, of the head's record, of the layer's
// record. They are 0 where there is no such object.
int64_t PackedBlockObjectBytes(const PackedShape& shape);
// How many bytes fewer a block of the run takes once the run is pressed; 0 where it is.
int64_t BytesPressedOff(const CacheLayout& layout, const HeadInRun& head, const RunExtent& run);
int64_t RunRecordObjectBytes(const PackedShape& shape);
int64_t LayerRecordObjectBytes(const PackedShape& shape);
// Bytes of the list of runs of one head.
int64_t RunTableBytes(int64_t n_runs);

// Bytes of room that sealing needs: to seal the runs of all heads, [n_layers * n_kv_heads], in the
// layers [first_layer, n_layers), one layer after the other. The objects of the largest layer exist
// beside its plain blocks for a while, and a layer grows where a spec stores more than 16 bits.
// Blocks that no position from released_at on can see have been given back before.
int64_t SealRoomBytes(const CacheLayout& layout, std::span<const RunExtent> runs, int first_layer,
                      int64_t released_at = 0);
// The same if all heads seal the same run.
inline int64_t SealRoomBytes(const CacheLayout& layout, const RunExtent& run, int first_layer,
                             int64_t released_at = 0) {
  return SealRoomBytes(layout, std::vector<RunExtent>(layout.shapes.size(), run), first_layer,
                       released_at);
}

// Bytes of all objects of the runs of all heads in the layers from first_layer on: the room that
// sealing needs where other sequences hold the plain blocks as well.
int64_t RunObjectBytes(const CacheLayout& layout, std::span<const RunExtent> runs, int first_layer);

// Bytes of room where entries are sealed again (SealsAgainAt(n_tokens)): what stays of the largest
// layer exists as plain blocks beside its objects.
int64_t ReopenRoomBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                        int first_layer);

}  // namespace kvlathe

// Which blocks of a sequence are sealed when (docs/quantization.md, Runs), and what that takes.
//
// Entries are positions past the sink. While the prompt is read, every prompt_run entries are
// sealed as one run; at its end the full blocks of the unfinished run are; after that every
// `buffer` entries. All that without the `newest` last entries, as if they had not come yet. Where
// entries are dropped after the prompt (RetentionPlan::slack) it is as if the prompt ended there:
// the full blocks of what stays are sealed again, as one run. So run ends depend on positions and
// on where the prompt ends alone, and so does which runs of the prompt are repaired
// (SealPlan::repaired_share). Without a SealPlan nothing is ever sealed.
//
// Where the model decides what merges (CacheLayout::HasRunsOfHeads) heads differ in length: each
// seals the full blocks of its closed entries where the prompt ends, as one run, and then, every
// `buffer` positions, the oldest `buffer` of its closed entries if it has so many. So seal points
// depend on positions, and runs on the entries of the head. What is said of positions alone is then
// said of heads that never merge.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/cache_layout.h"

namespace kvlathe {

struct RunExtent {
  int64_t first_block = 0;
  int64_t n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;  // has the low-rank residual of its kind, if there is one
};

// Whether entries are dropped at n_tokens, past the prompt: runs begin afresh there.
bool StartsAfreshAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);
// Whether some of them are sealed, so that those that stay are sealed again.
bool SealsAgainAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// Blocks of each head that are sealed once n_tokens positions are there.
int64_t SealedBlocks(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// The next position count after n_tokens at which something may be sealed. A step never crosses
// one: all its queries see the same runs.
int64_t NextSealPoint(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// The run that is sealed when n_tokens positions are there, behind n_sealed blocks that are sealed;
// n_blocks 0 when none is. Where runs begin afresh it takes their place.
RunExtent RunEndingAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                      int64_t n_sealed);

// All runs that are sealed once n_tokens positions are there, oldest first.
std::vector<RunExtent> RunsOf(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);

// --- Where HasRunsOfHeads. ---

// The last position count up to n_tokens at which heads were sealed; 0 before the prompt's end.
int64_t LastSealPoint(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt);
// What a head seals that reaches n_tokens positions with these entries and sealed blocks; n_blocks
// 0 for nothing.
RunExtent RunOfHeadAt(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                      int64_t n_entries, int64_t n_sealed_blocks);
std::vector<RunExtent> RunsOf(const CacheLayout& layout, const MergedLength& length);

// --- Bytes. ---

PackedShape PackedShapeOf(const CacheLayout& layout, int layer_idx, int kv_head_idx,
                          const RunExtent& run);
// The same of a head of that shape, sealed with others whose rank_v sum to layer_rank_v with its
// own.
PackedShape PackedShapeOf(const CacheLayout& layout, const BlockShape& head, int layer_rank_v,
                          const RunExtent& run);

// Objects of a run: one block of a head, its record, the layer's record. 0 where there is none.
int64_t PackedBlockObjectBytes(const PackedShape& shape);
int64_t RunRecordObjectBytes(const PackedShape& shape);
int64_t LayerRecordObjectBytes(const PackedShape& shape);
// The list of runs of one head.
int64_t RunTableBytes(int64_t n_runs);

// Room to seal the runs of all heads, [n_layers * n_kv_heads], in layers [first_layer, n_layers),
// one after the other: the objects of the largest, which stand beside its plain blocks for a while,
// and what each layer grows by where a spec stores more than 16 bits. Blocks that no position
// from released_at on can see have been given back.
int64_t SealRoomBytes(const CacheLayout& layout, std::span<const RunExtent> runs, int first_layer,
                      int64_t released_at = 0);
// Where all heads seal the same run.
inline int64_t SealRoomBytes(const CacheLayout& layout, const RunExtent& run, int first_layer,
                             int64_t released_at = 0) {
  return SealRoomBytes(layout, std::vector<RunExtent>(layout.shapes.size(), run), first_layer,
                       released_at);
}

// The same where SealsAgainAt(n_tokens): what stays of the largest layer stands beside its objects
// as plain blocks.
int64_t ReopenRoomBytes(const CacheLayout& layout, int64_t n_tokens, int64_t n_prompt,
                        int first_layer);

}  // namespace kvlathe

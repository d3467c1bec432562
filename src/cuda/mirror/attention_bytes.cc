// The blocks of heads, and attention over them.
#include <algorithm>

#include "cuda/mirror/list_bytes.h"
#include "format/entry_table.h"
#include "format/mean_angles.h"
#include "format/packed_layout.h"
#include "format/split_bits/coded_rows.h"

namespace kvlathe {
namespace {

constexpr int64_t kFloat = 4;

int64_t BlocksOf(int64_t n_entries) { return (n_entries + kBlockSize - 1) / kBlockSize; }

// Of a run of a head.
PackedShape ShapeOf(const SealedRun& run, const SealedHead& head, const BlockShape& shape) {
  return MakePackedShape(head.format, shape, head.storage,
                         {.n_kv_heads = head.n_kv_heads,
                          .layer_rank_v = head.layer_rank_v,
                          .n_blocks = run.n_blocks,
                          .is_prompt = run.is_prompt,
                          .is_repaired = run.is_repaired,
                          .entry_class = run.entry_class,
                          .has_rotations = !run.record.is_null()});
}

void ReadsEach(std::span<const ObjectId> blocks, Range of, int64_t block_bytes, VerbBytes* bytes) {
  const int64_t end = std::min<int64_t>(of.end, std::ssize(blocks));
  for (int64_t b = std::max<int64_t>(0, of.begin); b < end; ++b) {
    bytes->Reads(blocks[b], block_bytes);
  }
}

void ReadsFrames(const FrameIds& frames, VerbBytes* bytes) {
  for (const WeightId& map : frames.maps) bytes->Uses(map);
  const int64_t mean_bytes = int64_t{frames.n_joined} * frames.head_dim * kFloat;
  bytes->Reads(frames.key_offset, mean_bytes);
  if (frames.n_pairs > 0) {
    bytes->Reads(frames.turning_mean, mean_bytes);
    // As MeanAngles lays it out.
    bytes->Reads(frames.mean_angles, (2 * kHalfBlock + 4) * frames.n_pairs * kFloat);
  }
  // Of which positions, follows from frames and entries.
  bytes->ReadsToEnd(frames.cos);
  bytes->ReadsToEnd(frames.sin);
}

void ReadsLatents(const HeadJob& job, Range blocks, VerbBytes* bytes) {
  const LatentIds& latents = job.latents;
  if (latents.empty()) return;
  for (const LatentSliceIds& slice : latents.slices) {
    ReadsBlocks({job.shape, slice.packed, slice.blocks}, blocks, bytes);
    bytes->Reads(slice.sink_v, int64_t{job.sinks.n} * job.shape.rank_v * job.shape.element_bytes());
  }
  if (latents.rotation.half == 0) return;
  const EntryTableId& table = latents.positions;
  bytes->Reads(table.object, BlocksOf(job.n_entries) * EntryTable::BlockBytes(table.has_sums));
  const SortedPositionsId& sorted = latents.sorted;
  bytes->Reads(sorted.object, sorted.n_blocks * SortedPositions::BlockBytes(sorted.is_wide));
  if (table.empty() && sorted.object.is_null()) {
    ReadsAngles(latents.rotation, blocks.end, bytes);
    return;
  }
  // Positions are in the tables; later blocks than the sorted ones turn by the rotation.
  bytes->ReadsToEnd(latents.cos);
  bytes->ReadsToEnd(latents.sin);
  if (table.empty()) ReadsAngles(latents.rotation, blocks.end, bytes);
}

void ReadsQueries(const HeadJob& job, VerbBytes* bytes) {
  const int64_t n_rows = int64_t{job.n_tokens} * job.gqa_group;
  const int64_t element = job.shape.element_bytes();
  bool reads_whole = job.sinks.n > 0 || !job.rebuilt.keys.empty();
  reads_whole |= !job.frames.maps.empty() || job.frames.n_pairs > 0 || !job.lost_keys.is_null();
  if (reads_whole) {
    bytes->ReadsRows(job.q_full, {n_rows, job.q_full_stride, job.head_dim, element});
  }
  if (!job.frames.maps.empty()) return;
  const int64_t width = job.latents.empty() ? job.shape.rank_k : job.head_dim;
  bytes->ReadsRows(job.q, {n_rows, job.q_stride, width, element});
}

void ListJob(const HeadJob& job, VerbBytes* bytes) {
  const int64_t element = job.shape.element_bytes();
  ReadsQueries(job, bytes);
  const int64_t first_seen = job.window > 0 ? std::max(0, job.first_visible - job.window) : 0;
  const Range blocks = {first_seen / kBlockSize, BlocksOf(job.n_entries)};
  if (job.latents.slices.empty()) {
    ReadsBlocks({job.shape, job.packed, job.blocks}, blocks, bytes);
  }
  ReadsLatents(job, blocks, bytes);
  ReadsFrames(job.frames, bytes);
  bytes->Reads(job.lost_keys, int64_t{job.head_dim} * kFloat);
  bytes->Reads(job.sink_logits, int64_t{job.gqa_group} * kFloat);
  for (const auto& maps : {job.rebuilt.keys, job.rebuilt.values, job.rebuilt.outputs}) {
    for (const WeightId& map : maps) bytes->Uses(map);
  }
  const int64_t n_sinks = job.sinks.n;
  bytes->Reads(job.sinks.k, n_sinks * job.head_dim * element);
  if (job.latents.slices.empty()) {
    bytes->Reads(job.sinks.v, n_sinks * job.shape.sink_value_width() * element);
  }
  if (job.merged.n_closed != nullptr) {
    bytes->ReadsRows(job.merged.k, {job.n_tokens, job.merged.k_stride, job.shape.rank_k, element});
    bytes->ReadsRows(job.merged.v, {job.n_tokens, job.merged.v_stride, job.shape.rank_v, element});
  }
  if (job.is_scored()) {
    bytes->Changes(job.scored.object,
                   BlocksOf(job.n_entries) * EntryTable::BlockBytes(job.scored.has_sums));
  }
  const int64_t head_width = job.out_head_stride > 0 ? job.out_head_stride : job.output_width();
  bytes->WritesRows(
      job.out, {job.n_tokens, job.out_stride, job.gqa_group * head_width, SizeOf(job.out_type)});
}

}  // namespace

void ReadsAngles(const KeyRotationId& rotation, int64_t n_blocks, VerbBytes* bytes) {
  const int64_t n_bytes = n_blocks * kBlockSize * rotation.half * kFloat;
  bytes->Reads(rotation.cos, n_bytes);
  bytes->Reads(rotation.sin, n_bytes);
}

void ReadsBlocks(const StoredBlocks& stored, Range blocks, VerbBytes* bytes) {
  const SealedHead& sealed = stored.sealed;
  int64_t first_plain = 0;
  for (const SealedRun& run : sealed.runs) {
    const PackedShape shape = ShapeOf(run, sealed, stored.shape);
    const Range of_run = {run.first_block, run.first_block + run.n_blocks};
    first_plain = of_run.end;
    ReadsEach(stored.blocks,
              {std::max(blocks.begin, of_run.begin), std::min(blocks.end, of_run.end)},
              PackedBlockBytes(shape), bytes);
    bytes->Reads(run.record, RunRecordBytes(shape));
    bytes->Reads(run.layer_record, LayerRecordBytes(shape));
  }
  const OpenBlocks& open = sealed.open;
  const Range open_blocks = {open.first_block, open.first_block + open.n_blocks};
  if (open.n_blocks > 0) {
    ReadsEach(stored.blocks,
              {std::max(blocks.begin, open_blocks.begin), std::min(blocks.end, open_blocks.end)},
              kBlockSize * CodedTokenBytes(stored.shape), bytes);
    first_plain = open_blocks.end;
  }
  ReadsEach(stored.blocks, {std::max(blocks.begin, first_plain), blocks.end},
            BlockBytes(stored.shape), bytes);
  if (!sealed.runs.empty()) ReadsAngles(sealed.rotation, first_plain, bytes);
}

void ListBytes(std::span<const HeadJob> jobs, VerbBytes* bytes) {
  for (const HeadJob& job : jobs) ListJob(job, bytes);
}

}  // namespace kvlathe

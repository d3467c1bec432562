#include <algorithm>

#include "cuda/mirror/list_bytes.h"
#include "format/entry_table.h"
#include "format/open_entry.h"
#include "format/packed_layout.h"
#include "format/split_bits/coded_rows.h"

namespace kvlathe {
namespace {

int64_t OpenBytes(const BlockShape& shape, bool is_coded) {
  return is_coded ? kBlockSize * CodedTokenBytes(shape) : BlockBytes(shape);
}

void ChangesEach(std::span<const ObjectId> blocks, int64_t block_bytes, VerbBytes* bytes) {
  for (const ObjectId& block : blocks) bytes->Changes(block, block_bytes);
}

void ListPrunedHead(const PrunePlan& plan, const PruneHead& head, VerbBytes* bytes) {
  const int64_t n_blocks = (head.n_entries + kBlockSize - 1) / kBlockSize;
  const int64_t block_bytes = OpenBytes(head.shape, plan.has_coded_rows);
  if (head.opened.empty()) {
    ChangesEach(head.blocks, block_bytes, bytes);
  } else {
    ReadsBlocks({head.shape, head.packed, head.blocks}, {0, n_blocks}, bytes);
    ChangesEach(head.opened, block_bytes, bytes);
  }
  bytes->Changes(head.entries.object, n_blocks * EntryTable::BlockBytes(head.entries.has_sums));
}

void ListSealedHead(const SealHeadPlan& head, const PackedShape& shape, VerbBytes* bytes) {
  const int64_t block_bytes = OpenBlockBytes(shape.format.codec, head.shape);
  for (const ObjectId& block : head.blocks) bytes->Reads(block, block_bytes);
  ChangesEach(head.packed, PackedBlockBytes(shape), bytes);
  bytes->Changes(head.record, RunRecordBytes(shape));
}

void ListSealedRun(const SealRunPlan& run, const PackedFormat& format, VerbBytes* bytes) {
  RunOfLayer of_layer = {.n_kv_heads = static_cast<int>(run.heads.size()),
                         .n_blocks = run.n_blocks,
                         .is_prompt = run.is_prompt,
                         .is_repaired = run.is_repaired,
                         .entry_class = run.entry_class};
  for (const SealHeadPlan& head : run.heads) of_layer.layer_rank_v += head.shape.rank_v;
  for (const SealHeadPlan& head : run.heads) {
    const PackedShape shape = MakePackedShape(format, head.shape, head.storage, of_layer);
    ListSealedHead(head, shape, bytes);
    bytes->Changes(run.layer_record, LayerRecordBytes(shape));
  }
  ReadsAngles(run.rotation, run.n_blocks, bytes);
}

}  // namespace

void ListBytes(const AppendPlan& plan, VerbBytes* bytes) {
  for (const AppendPlan::Item& item : plan.items) {
    for (const CopyPlan& copy : std::span(plan.copies).subspan(item.first_copy, item.n_copies)) {
      bytes->Reads(copy.from, copy.n_bytes);
      bytes->Writes(copy.to, copy.n_bytes);
    }
    for (const BlockRows& rows : std::span(plan.rows).subspan(item.first_rows, item.n_rows)) {
      const int64_t element = rows.shape.element_bytes();
      bytes->Changes(rows.block, OpenBytes(rows.shape, rows.is_coded));
      bytes->ReadsRows(rows.k, {rows.n_rows, rows.k_stride, rows.shape.rank_k, element});
      bytes->ReadsRows(rows.v, {rows.n_rows, rows.v_stride, rows.shape.rank_v, element});
    }
  }
}

void ListBytes(const GramBatch& batch, VerbBytes* bytes) {
  for (const GramPlan& plan : batch.plans) {
    bytes->ReadsRows(plan.rows.first,
                     {plan.n_rows, plan.rows.stride, batch.n_dims, SizeOf(batch.type)});
    bytes->Changes(plan.gram, batch.n_dims * batch.n_dims * 4);
  }
}

void ListBytes(const MergeRowsPlan& plan, VerbBytes* bytes) {
  for (const MergeItem& item : plan.items) {
    const VerbBytes::Rows k = {item.n_tokens, plan.k_stride, plan.head_dim};
    const VerbBytes::Rows v = {item.n_tokens, plan.v_stride, item.rank_v, SizeOf(plan.row_type)};
    bytes->Changes(item.open_entry, OpenEntry::Bytes(plan.merge, plan.head_dim, item.rank_v));
    bytes->Changes(item.k, k.n_bytes());
    bytes->Changes(item.v, v.n_bytes());
  }
}

void ListBytes(const PrunePlan& plan, VerbBytes* bytes) {
  for (const PruneHead& head : plan.heads) ListPrunedHead(plan, head, bytes);
}

void ListBytes(std::span<const CutItem> items, VerbBytes* bytes) {
  for (const CutItem& item : items) {
    bytes->Uses(item.map);
    ChangesEach(item.blocks, BlockBytes(item.whole), bytes);
  }
}

void ListBytes(const SealBatch& batch, VerbBytes* bytes) {
  for (const SealRunPlan& run : batch.runs) ListSealedRun(run, batch.format, bytes);
}

void ListBytes(const RotatedBatch& batch, VerbBytes* bytes) {
  for (const RotatedHeadPlan& plan : batch.heads) {
    PackedShape shape = plan.packed_shape;
    ListSealedHead(plan.head, shape, bytes);
    shape.has_rotations = true;
    bytes->Reads(plan.rotations, RunRecordBytes(shape));
    const int64_t k = shape.rank_k, v = shape.rank_v;
    bytes->Reads(plan.query_gram, k * k * 4);
    bytes->Reads(plan.output_gram, v * v * 8);
  }
}

void ListBytes(std::span<const OpenedRun> runs, VerbBytes* bytes) {
  for (const OpenedRun& run : runs) {
    ReadsBlocks({run.shape, run.sealed, run.blocks}, {0, std::ssize(run.blocks)}, bytes);
    ChangesEach(run.plain, BlockBytes(run.shape), bytes);
  }
}

void ListBytes(std::span<const ReencodedRun> runs, VerbBytes* bytes) {
  for (const ReencodedRun& run : runs) {
    ReadsBlocks({run.shape, run.sealed, run.blocks}, {0, std::ssize(run.blocks)}, bytes);
    for (const ObjectId& plain : run.plain) bytes->Reads(plain, BlockBytes(run.shape));
  }
}

}  // namespace kvlathe

#include "kv/byte_kinds.h"

#include <algorithm>

#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

void AddRun(const PackedShape& s, int64_t n_blocks, bool owns_layer_record, ByteKinds* kinds) {
  if (s.format.is_rotated) {
    kinds->plain += n_blocks * PackedBlockBytes(s);
    kinds->lowrank += RunRecordBytes(s);
    kinds->padding += n_blocks * (PackedBlockObjectBytes(s) - PackedBlockBytes(s)) +
                      RunRecordObjectBytes(s) - RunRecordBytes(s);
    return;
  }
  kinds->codes += n_blocks * (KeyCodeBytes(s) + ValueCodeBytes(s));
  kinds->scales += n_blocks * (KeyTokenScaleBytes(s) + ValueTokenScaleBytes(s));
  kinds->scales += KeyChannelScaleBytes(s) + n_blocks * BlockScaleBytes(s);
  kinds->lowrank += n_blocks * 2 * FactorBytes(s) + KeySparseEndsOffset(s) - KeyBasisOffset(s);
  kinds->exact += n_blocks * (KeyCountBytes(s) + ValueCountBytes(s));
  kinds->exact += RunRecordBytes(s) - KeySparseEndsOffset(s);
  kinds->padding += n_blocks * (PackedBlockObjectBytes(s) - PackedBlockBytes(s)) +
                    RunRecordObjectBytes(s) - RunRecordBytes(s);
  if (!owns_layer_record) return;
  kinds->scales += ValueLayerScaleBytes(s);
  kinds->exact += LayerRecordBytes(s) - ValueSparseEndsOffset(s);
  kinds->padding += LayerRecordObjectBytes(s) - LayerRecordBytes(s);
}

}  // namespace

std::vector<ByteKinds> ByteKindsByLayer(const CacheLayout& layout, const SequenceLength& length) {
  std::vector<ByteKinds> layers(layout.n_layers);
  if (length.n_tokens <= 0) return layers;
  const int64_t n_blocks = HeldBlocks(layout, length.n_tokens, length.n_prompt);
  const std::vector<RunExtent> runs = RunsOf(layout, length.n_tokens, length.n_prompt);
  const int64_t n_sealed = runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
  for (int l = 0; l < layout.n_layers; ++l) {
    ByteKinds& kinds = layers[l];
    const int64_t first_held = BlocksOutOfWindow(layout, l, length.n_tokens - length.n_step);
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      const BlockShape shape =
          layout.PlainShapeAt(l * layout.n_kv_heads + g, length.n_tokens, length.n_prompt);
      const int64_t n_plain = n_blocks - std::max(n_sealed, first_held);
      kinds.plain += n_plain * BlockBytes(shape);
      kinds.padding += n_plain * (BlockObjectBytes(shape) - BlockBytes(shape));
      kinds.sinks += SinkBytes(layout, shape);
      if (!layout.RetentionIsOver(length.n_tokens, length.n_prompt)) {
        kinds.entries += EntryTableBytes(layout, n_blocks) + OpenEntryBytes(layout, shape);
      }
      kinds.tables += TableBytes(n_blocks) + RunTableBytes(static_cast<int64_t>(runs.size()));
      if (runs.empty()) kinds.lowrank += QueryGramBytes(layout);
      for (const RunExtent& run : runs) {
        const int64_t end = run.first_block + run.n_blocks;
        if (end <= first_held) continue;
        AddRun(PackedShapeOf(layout, l, g, run), end - std::max(run.first_block, first_held),
               layout.OwnsLayerRecord(g), &kinds);
      }
    }
  }
  return layers;
}

}  // namespace kvlathe

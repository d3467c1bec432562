#include "cpu/kernels/attend/resolve.h"

namespace kvlathe {

PackedHead PackedHeadAt(const CpuLookup& lookup, const SealedHead& head,
                        std::vector<PackedRun>* runs) {
  runs->clear();
  for (const SealedRun& run : head.runs) {
    runs->push_back({.first_block = run.first_block,
                     .n_blocks = run.n_blocks,
                     .is_prompt = run.is_prompt,
                     .is_repaired = run.is_repaired,
                     .entry_class = run.entry_class,
                     .record = lookup.cache.At(run.record),
                     .layer_record = lookup.cache.At(run.layer_record)});
  }
  return {.format = head.format,
          .storage = head.storage,
          .kv_head_idx = head.kv_head_idx,
          .n_kv_heads = head.n_kv_heads,
          .layer_rank_v = head.layer_rank_v,
          .runs = runs->data(),
          .n_runs = static_cast<int>(runs->size()),
          .open = {.first_block = head.open.first_block,
                   .n_blocks = head.open.n_blocks,
                   .is_open = head.open.n_blocks > 0},
          .codebooks = lookup.residents.At(head.codebooks),
          .rotation = KeyRotationAt(lookup.own, head.rotation)};
}

}  // namespace kvlathe

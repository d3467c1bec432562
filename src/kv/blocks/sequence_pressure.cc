// Runs that are sealed again in fewer bits, where memory is short.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

std::optional<int> SequenceCache::RunToPress() const {
  if (!layout_->HasPressedRuns() || has_failed_ || objects_.heads().empty()) return std::nullopt;
  const int n_runs = static_cast<int>(objects_.heads().front().runs.size());
  for (int r = 0; r < n_runs; ++r) {
    if (objects_.BytesPressedOff(r) > 0) return r;
  }
  return std::nullopt;
}

Status SequenceCache::PressRun(int run_idx) {
  KVL_CHECK(layout_->HasPressedRuns());
  if (objects_.PressRun(run_idx)) return OkStatus();
  return Error(StatusCode::kResourceExhausted, "no memory to move run {} of {} positions", run_idx,
               n_tokens());
}

std::vector<int> SequenceCache::pressed_runs() const {
  std::vector<int> places;
  if (!layout_->HasPressedRuns()) return places;
  const std::span<const SealedRun> runs = objects_.heads().front().runs;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (runs[r].entry_class == EntryClass::kPressed) places.push_back(static_cast<int>(r));
  }
  return places;
}

int64_t SequenceCache::n_pressed() const {
  int64_t n_blocks = 0;
  for (const int r : pressed_runs()) n_blocks += objects_.heads().front().runs[r].n_blocks;
  return n_blocks * kBlockSize;
}

int64_t SequenceCache::bytes_pressed_off() const {
  int64_t n_bytes = 0;
  for (const int r : pressed_runs()) {
    for (size_t i = 0; i < objects_.heads().size(); ++i) {
      const HeadTable& head = objects_.heads()[i];
      RunExtent before = ExtentOf(head.runs[r]);
      before.entry_class = EntryClass::kMiddle;
      const HeadInRun in_run = HeadInRunOf(*layout_, static_cast<int>(i) / layout_->n_kv_heads,
                                           static_cast<int>(i) % layout_->n_kv_heads);
      const auto blocks = std::span(head.blocks).subspan(before.first_block, before.n_blocks);
      n_bytes += std::ranges::count_if(blocks, [](const ObjectId& b) { return !b.is_null(); }) *
                 BytesPressedOff(*layout_, in_run, before);
    }
  }
  return n_bytes;
}

}  // namespace kvlathe

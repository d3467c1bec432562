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
  const std::vector<int> pressed = pressed_runs();
  if (pressed.empty()) return 0;
  int64_t n_bytes = 0;
  for (size_t i = 0; i < objects_.heads().size(); ++i) {
    const HeadTable& head = objects_.heads()[i];
    int64_t n_blocks = 0;  // that have not left the window
    for (const int r : pressed) {
      const auto blocks =
          std::span(head.blocks).subspan(head.runs[r].first_block, head.runs[r].n_blocks);
      n_blocks += std::ranges::count_if(blocks, [](const ObjectId& b) { return !b.is_null(); });
    }
    RunExtent before = ExtentOf(head.runs[pressed.front()]);  // all take as much
    before.entry_class = EntryClass::kMiddle;
    const int layer_idx = static_cast<int>(i) / layout_->n_kv_heads;
    const int kv_head_idx = static_cast<int>(i) % layout_->n_kv_heads;
    n_bytes +=
        n_blocks * BytesPressedOff(*layout_, HeadInRunOf(*layout_, layer_idx, kv_head_idx), before);
  }
  return n_bytes;
}

}  // namespace kvlathe

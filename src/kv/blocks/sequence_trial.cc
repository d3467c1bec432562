#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

void SequenceCache::NoteBlocks() {
  n_least_ = n_tokens();
  objects_.CountBlocks(&blocks_at_least_);
}

Status SequenceCache::ExtendOnTrial(int n_new) {
  KVL_CHECK_GE(n_new, 0);
  KVL_CHECK(!layout_->MergesEntries());
  KVL_RETURN_IF_ERROR(CheckWhole("go on"));
  const int64_t n_after = int64_t{n_tokens()} + n_new;
  KVL_RETURN_IF_ERROR(CheckLength(n_after));
  if (!is_on_trial()) NoteBlocks();
  if (n_after > n_writable_) {
    KVL_RETURN_IF_ERROR(objects_.Grow(progress_, n_after, /*runs=*/{}, /*room_bytes=*/0));
    n_writable_ = objects_.WritablePositions();
  }
  const int64_t first = std::max<int64_t>(n_tokens(), layout_->n_sink);
  progress_.n_tokens = static_cast<int>(n_after);
  progress_.n_on_trial += n_new;
  if (layout_->DropsEntries() && !layout_->RetentionIsOver(progress_.n_settled(), n_prompt())) {
    objects_.EnterEntries({first, n_after});
  }
  if (told() != nullptr) told()->ExtendedOnTrial(number_, n_new);
  return OkStatus();
}

void SequenceCache::TakeBack(int n_kept) {
  KVL_CHECK(!layout_->MergesEntries());
  KVL_CHECK_GE(n_kept, std::max(1, n_least_));
  KVL_CHECK_LE(n_kept, n_tokens());
  // What a trial keeps ends nothing; the next Extend would come too late for it.
  const int n_settled = progress_.n_settled();
  progress_.n_tokens = n_settled;
  KVL_CHECK(n_kept <= n_settled || n_kept - n_settled < max_step());
  progress_.n_tokens = n_kept;
  progress_.n_on_trial = 0;
  if (!blocks_at_least_.empty()) {
    std::vector<int64_t> n_blocks = blocks_at_least_;
    for (size_t i = 0; i < n_blocks.size(); ++i) {
      n_blocks[i] = std::max(n_blocks[i], objects_.heads()[i].BlocksAt(*layout_, n_kept));
    }
    objects_.ReleaseBlocksBehind(progress_, n_blocks);
    n_writable_ = objects_.WritablePositions();
  }
  if (n_kept > n_least_) {  // as a step of the last position alone would have
    objects_.ReleaseOutOfWindow(progress_, n_kept - 1);
    progress_.released_at = std::max<int64_t>(progress_.released_at, n_kept - 1);
  }
  if (told() != nullptr) told()->TakenBack(number_, n_kept);
}

}  // namespace kvlathe

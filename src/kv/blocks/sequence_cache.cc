#include "kv/blocks/sequence_cache.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvlathe {
namespace {

size_t HeadIdx(const CacheLayout& layout, int layer_idx, int kv_head_idx) {
  return static_cast<size_t>(layer_idx) * layout.n_kv_heads + kv_head_idx;
}

}  // namespace

SequenceCache::SequenceCache(const CacheLayout* layout, BlockPool* pool)
    : layout_(layout), progress_({.first_whole_layer = layout->n_layers}), objects_(layout, pool) {
  if (journal() != nullptr) number_ = journal()->CacheMade(*layout, pool->number());
}

SequenceCache::~SequenceCache() {
  if (told() != nullptr) told()->CacheGone(number_);
}

void SequenceCache::SetKept() {
  objects_.SetKept(true);
  if (told() != nullptr) told()->KeptSet(number_);
}

void SequenceCache::SetFailed() {
  has_failed_ = true;
  if (told() != nullptr) told()->Failed(number_);
}

void SequenceCache::set_n_prompt(int64_t n_prompt, int64_t n_generated) {
  KVL_CHECK_EQ(n_tokens(), 0);
  progress_.n_prompt = n_prompt;
  progress_.n_generated = n_generated;
  if (told() != nullptr) told()->PromptSet(number_, n_prompt, n_generated);
}

int64_t SequenceCache::max_step() const {
  int64_t next = NextSealPoint(*layout_, n_tokens(), n_prompt());
  if (layout_->HasPrunePoints()) {
    const PromptPlace place = {layout_->n_sink, n_prompt()};
    next = std::min(next, NextPrunePoint(*layout_->retention, place, n_tokens()));
  }
  // The last token of a prompt comes alone, behind the votes.
  if (n_tokens() + 1 < n_prompt() && layout_->RepeatsPrompt(n_prompt())) {
    next = std::min(next, n_prompt() - 1);
  }
  return next - n_tokens();
}

bool SequenceCache::must_read_again() const {
  return !has_read_again_ && n_settled() + 1 == n_prompt() && layout_->RepeatsPrompt(n_prompt());
}

Status SequenceCache::CheckWhole(std::string_view verb) const {
  if (!is_broken()) return OkStatus();
  return Error(StatusCode::kDataLoss,
               "the sequence failed at {} positions and cannot {}; start it again", n_tokens(),
               verb);
}

Status SequenceCache::CheckLength(int64_t n_after) const {
  if (n_after <= std::numeric_limits<int>::max()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "a sequence of {} positions is beyond the limit {}",
               n_after, std::numeric_limits<int>::max());
}

Status SequenceCache::Extend(int n_new) {
  KVL_CHECK_GE(n_new, 0);
  KVL_RETURN_IF_ERROR(CheckWhole("go on"));
  KVL_CHECK(!is_on_trial());
  KVL_CHECK_LE(n_new, max_step());
  if (n_new > 0 && must_read_again()) {
    return Error(StatusCode::kFailedPrecondition,
                 "the prompt of {} positions was not read again, by which its cache chooses what "
                 "stays",
                 n_prompt());
  }
  if (n_new > 0) {
    objects_.ReleaseOutOfWindow(progress_, n_tokens());
    progress_.released_at = n_tokens();
  }
  const int64_t n_after = int64_t{n_tokens()} + n_new;
  const std::vector<RunExtent> runs = objects_.RunsAt(progress_, n_after);
  const int64_t room_bytes = objects_.SealRoom(progress_, n_after, runs, 0);
  if (n_after <= n_writable_ && room_bytes == 0) {
    n_least_ = n_tokens();
    blocks_at_least_.clear();
    EnterNewEntries(n_after);
    if (is_broken()) n_least_ = n_tokens();
    if (told() != nullptr) told()->Extended(number_, n_new);
    return OkStatus();
  }
  KVL_RETURN_IF_ERROR(CheckLength(n_after));
  NoteBlocks();
  KVL_RETURN_IF_ERROR(objects_.Grow(progress_, n_after, runs, room_bytes));
  n_writable_ = objects_.WritablePositions();
  EnterNewEntries(n_after);
  must_seal_ = !runs.empty();
  if (is_broken()) n_least_ = n_tokens();
  if (told() != nullptr) told()->Extended(number_, n_new);
  return OkStatus();
}

// Positions up to n_after are there now.
void SequenceCache::EnterNewEntries(int64_t n_after) {
  const int64_t first = std::max<int64_t>(n_tokens(), layout_->n_sink);
  const bool was_over = layout_->RetentionIsOver(n_tokens(), n_prompt());
  const bool ends_prompt = n_tokens() < n_prompt() && n_after >= n_prompt();
  if (ends_prompt && layout_->ReadsWholeKeys()) progress_.first_whole_layer = 0;
  progress_.n_tokens = static_cast<int>(n_after);
  if (!layout_->DropsEntries() || was_over) return;
  const RetentionPlan& plan = *layout_->retention;
  const PromptPlace place = {layout_->n_sink, n_prompt()};
  if (IsPrunePoint(plan, place, n_after)) kept_ = KeptAt(plan, place, n_after);
  objects_.EnterEntries({first, n_after});
  bool drops = layout_->RetentionIsOver(n_after, n_prompt())  // at least the tables
               || (ends_prompt && layout_->HasClasses());     // they are sorted
  for (const HeadTable& head : objects_.heads()) {
    const int64_t n_kept = head.n_to_keep > 0 ? head.n_to_keep : kept_.n;
    drops = drops || n_after - layout_->n_sink - head.n_dropped > n_kept;
  }
  if (!drops) kept_ = {};
}

void SequenceCache::Clear() {
  if (told() != nullptr) told()->Cleared(number_);
  objects_.Clear();
  progress_ = {.first_whole_layer = layout_->n_layers};
  kept_ = {};
  must_seal_ = false;
  has_failed_ = false;
  has_read_again_ = false;
  n_writable_ = 0;
  n_least_ = 0;
  blocks_at_least_.clear();
  reencoding_ = {};
}

StatusOr<std::unique_ptr<SequenceCache>> SequenceCache::Copy() const {
  KVL_RETURN_IF_ERROR(CheckWhole("be copied"));
  KVL_CHECK(!is_on_trial());
  auto copy = std::make_unique<SequenceCache>(layout_, objects_.pool());
  copy->progress_ = progress_;
  copy->n_writable_ = n_writable_;
  copy->has_read_again_ = has_read_again_;
  copy->n_least_ = n_tokens();
  copy->reencoding_ = reencoding_;
  if (copy->objects_.CopyFrom(objects_)) {
    if (told() != nullptr) told()->Copied(number_, copy->number_);
    return copy;
  }
  copy.reset();  // what is free is told without it
  const PoolUsage usage = objects_.pool()->usage();
  return Error(StatusCode::kResourceExhausted,
               "KV cache full: a copy of {} positions needs {} bytes, {} of {} are free; raise "
               "--kv-memory, or run fewer or shorter sequences",
               n_tokens(), bytes().total(), usage.budget_bytes - usage.used_bytes,
               usage.budget_bytes);
}

bool SequenceCache::must_reopen(int layer_idx) const {
  return must_prune() && !head(layer_idx, 0).runs().empty();
}

StatusOr<std::vector<std::vector<ObjectId>>> SequenceCache::TakeKeptBlocks(int layer_idx) {
  KVL_CHECK(must_reopen(layer_idx));
  objects_.ReturnAside();
  const int64_t n_blocks = (kept_.n + kBlockSize - 1) / kBlockSize;
  std::optional<std::vector<std::vector<ObjectId>>> kept = objects_.TakeBlocks(layer_idx, n_blocks);
  if (kept.has_value()) return *std::move(kept);
  return Error(StatusCode::kResourceExhausted, "no memory to open {} positions of layer {}",
               kept_.n, layer_idx);
}

void SequenceCache::PlaceKeptBlocks(int layer_idx, const std::vector<std::vector<ObjectId>>& kept) {
  objects_.ReplaceBlocks(layer_idx, kept, /*n_runs=*/must_seal_ ? 1 : 0);
  if (!must_seal_ && layer_idx + 1 < layout_->n_layers) {
    objects_.SetRoomAside(progress_, layer_idx + 1);
  }
}

void SequenceCache::DropPruned(int layer_idx) {
  KVL_CHECK(must_prune());
  for (int g = 0; g < layout_->n_kv_heads; ++g) {
    const size_t i = HeadIdx(*layout_, layer_idx, g);
    const int64_t n_before = std::max(0, head(layer_idx, g).n_entries());
    const int64_t n_kept = std::min<int64_t>(n_before, n_to_keep(i));
    const int64_t n_blocks = BlocksAfterPrune(*layout_->retention, n_before, n_kept);
    objects_.SetDropped(i, objects_.heads()[i].n_dropped + n_before - n_kept, n_blocks);
    objects_.SetEntryTableSize(i, EntryBytesAt(*layout_, n_blocks, n_tokens(), n_prompt()));
  }
  if (layer_idx + 1 < layout_->n_layers) return;
  kept_ = {};
  n_writable_ = objects_.WritablePositions();
}

Status SequenceCache::ShrinkBlocks(int layer_idx) {
  KVL_CHECK(must_cut_keys() && layer_idx == progress_.first_whole_layer);
  ++progress_.first_whole_layer;
  if (objects_.ShrinkBlocks(layer_idx)) return OkStatus();
  return Error(StatusCode::kResourceExhausted, "no memory to cut the keys of layer {}", layer_idx);
}

void SequenceCache::SetMerged(int layer_idx, int kv_head_idx, int64_t n_entries) {
  const size_t i = HeadIdx(*layout_, layer_idx, kv_head_idx);
  const int64_t n_seen = std::max<int64_t>(0, n_tokens() - layout_->n_sink);
  const int64_t n_dropped = n_seen - n_entries;
  KVL_CHECK_LE(n_entries, n_seen - objects_.heads()[i].n_dropped);
  objects_.SetDropped(i, n_dropped, BlocksFor(*layout_, n_tokens() - n_dropped));
  if (i + 1 == objects_.heads().size()) n_writable_ = objects_.WritablePositions();
}

StatusOr<RunObjects> SequenceCache::TakeRunObjects(int layer_idx) {
  KVL_CHECK(must_seal());
  objects_.ReturnAside();
  std::optional<RunObjects> objects = objects_.TakeRuns(progress_, layer_idx);
  if (objects.has_value()) return *std::move(objects);
  return Error(StatusCode::kResourceExhausted,
               "no memory to seal what layer {} holds of {} positions", layer_idx, n_tokens());
}

void SequenceCache::PlaceRun(int layer_idx, const RunObjects& objects) {
  objects_.PlaceRuns(progress_, layer_idx, objects);
  if (layer_idx + 1 == layout_->n_layers) {
    must_seal_ = false;
    return;
  }
  objects_.SetRoomAside(progress_, layer_idx + 1);
}

}  // namespace kvlathe

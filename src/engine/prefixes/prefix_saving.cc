// How entries of the prefix store come to disk and back.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/prefixes/prefix_store.h"

namespace kvlathe {
namespace {

// An entry is not written where files give so much of it: a conversation is written each time that
// it has grown by an eighth, and in the end.
constexpr double kShareHeld = 7.0 / 8;
constexpr int kTokensWrittenForOne = 32;
// Bytes that a step copies at most, but for a layer of a long entry.
constexpr int64_t kMostCopiedInStep = int64_t{8} << 20;
// Bytes that wait for the disk, for a step to copy no more; and for what has to be copied at once
// or never.
constexpr int64_t kMostWaitingBytes = int64_t{64} << 20;
constexpr int64_t kMostWaitingAtOnce = int64_t{512} << 20;

}  // namespace

PrefixArchive::Draft PrefixStore::DraftOf(const Entry& entry) const {
  return {.key = entry.key, .tokens = entry.tokens, .n_prompt = entry.cache->n_prompt()};
}

// Whether files give so much of it that it need not be written.
bool PrefixStore::IsHeld(const PrefixArchive::Draft& draft, When when) const {
  const auto n_tokens = static_cast<int>(draft.tokens.size());
  const int n_held = archive_->CountHeld(draft);
  if (when == When::kAtTheEnd) {
    return n_tokens - n_held < std::max(kLeastTokensOnDisk, n_tokens / kTokensWrittenForOne);
  }
  return n_held >= kShareHeld * n_tokens;
}

bool PrefixStore::Fetches(const Question& question) {
  if (archive_ == nullptr || question.key->identity == nullptr) return false;
  for (;;) {
    const PrefixArchive::Found found = archive_->Find(question, max_bytes_, CountFound(question));
    if (found.name.empty()) return false;
    std::string sequence;
    std::vector<int32_t> tokens;
    switch (archive_->Read(found.name, &sequence, &tokens)) {
      case PrefixArchive::ReadState::kUnderWay:
        return true;
      case PrefixArchive::ReadState::kRead:
        Restore(question, found.name, sequence, std::move(tokens));
        return false;
      case PrefixArchive::ReadState::kFailed:
        break;  // another file may give less
    }
  }
}

// What a saved sequence holds, for which entries are given up.
StatusOr<std::unique_ptr<SequenceCache>> PrefixStore::MakeCache(const PrefixKey& key,
                                                                size_t n_tokens,
                                                                std::string_view sequence,
                                                                const std::string& name) {
  auto cache = std::make_unique<SequenceCache>(key.layout, pool_);
  const SequencePlace place = {*key.identity, key.layout, std::numeric_limits<int>::max()};
  Status status;
  do {
    status = RestoreSequence(std::as_bytes(std::span(sequence)), name, place, cache.get()).status();
  } while (status.code() == StatusCode::kResourceExhausted && EvictOldest());
  KVL_RETURN_IF_ERROR(status);
  if (cache->n_tokens() == static_cast<int64_t>(n_tokens)) return cache;
  return Error(StatusCode::kDataLoss, "{}: damaged: {} positions for {} tokens", name,
               cache->n_tokens(), n_tokens);
}

Status PrefixStore::Enter(const PrefixKey& key, std::span<const int32_t> tokens,
                          std::string_view sequence) {
  KVL_ASSIGN_OR_RETURN(auto cache,
                       MakeCache(key, tokens.size(), sequence, "a prompt read elsewhere"));
  Add(key, tokens, std::move(cache));
  return OkStatus();
}

void PrefixStore::Restore(const Question& question, const std::string& file,
                          std::string_view sequence, std::vector<int32_t> tokens) {
  const PrefixKey& key = *question.key;
  const std::string path = archive_->options().folder + "/" + file;
  auto cache = MakeCache(key, tokens.size(), sequence, path);
  if (cache.status().code() == StatusCode::kResourceExhausted) return;  // it stays on disk
  if (!cache.ok()) return archive_->Refuse(file, cache.status());
  (*cache)->SetKept();
  entries_.push_front({.key = key,
                       .tokens = std::move(tokens),
                       .cache = *std::move(cache),
                       .is_saved = true,
                       .file = file});
  Trim();
}

// The one that has been there longest of those that have settled. False when there is none.
bool PrefixStore::BeginSaving(When when) {
  const double settles_in = std::chrono::duration<double>(archive_->options().settles_in).count();
  for (auto place = entries_.end(); place != entries_.begin();) {
    Entry& entry = *--place;
    if (entry.is_saved) continue;
    if (when == When::kSettled && (entry.is_held || entry.since_added.Seconds() < settles_in)) {
      continue;
    }
    const PrefixArchive::Draft draft = DraftOf(entry);
    entry.is_held = IsHeld(draft, when);
    entry.is_saved = !entry.is_held || when == When::kAtTheEnd;
    if (entry.is_held) continue;
    SequencePieces pieces(entry.cache.get(), *entry.key.identity, {});
    const int64_t n_bytes = pieces.n_bytes();
    if (n_bytes > archive_->options().max_bytes) {
      archive_->CountLost();
      continue;
    }
    saving_.emplace(Saving{place, std::move(pieces), archive_->Begin(draft, n_bytes)});
    return true;
  }
  return false;
}

// How many bytes it has.
int64_t PrefixStore::CopyPiece() {
  std::string piece = saving_->pieces.Next();
  const int64_t n_bytes = std::ssize(piece);
  archive_->Append(saving_->writing, std::move(piece));
  if (saving_->pieces.is_at_end()) saving_.reset();
  return n_bytes;
}

void PrefixStore::Tend() {
  if (archive_ == nullptr || entries_.empty()) return;
  for (int64_t n_copied = 0;
       n_copied < kMostCopiedInStep && archive_->n_waiting_bytes() < kMostWaitingBytes;
       n_copied += CopyPiece()) {
    if (!saving_.has_value() && !BeginSaving(When::kSettled)) return;
  }
}

void PrefixStore::SaveWhole(const PrefixArchive::Draft& draft, const SequenceCache& cache) {
  SequencePieces pieces(&cache, *draft.key.identity, {});
  const int64_t n_bytes = pieces.n_bytes();
  if (n_bytes > archive_->options().max_bytes ||
      archive_->n_waiting_bytes() + n_bytes > kMostWaitingAtOnce) {
    return archive_->CountLost();
  }
  const auto writing = archive_->Begin(draft, n_bytes);
  while (!pieces.is_at_end()) archive_->Append(writing, pieces.Next());
}

void PrefixStore::SaveNow(const PrefixKey& key, std::span<const int32_t> tokens,
                          const SequenceCache& cache) {
  if (archive_ == nullptr || key.identity == nullptr || !Takes(*key.layout) ||
      !SharesPrefixes(*key.layout) || std::ssize(tokens) < kLeastTokensOnDisk ||
      cache.bytes().total() > max_bytes_ || cache.n_pressed() > 0) {
    return;
  }
  const PrefixArchive::Draft draft = {key, tokens, cache.n_prompt()};
  if (archive_->CountHeld(draft) < std::ssize(tokens)) SaveWhole(draft, cache);
}

void PrefixStore::LeaveUnsaved(EntryPlace entry) {
  if (!saving_.has_value() || saving_->entry != entry) return;
  archive_->Abort(saving_->writing);
  saving_.reset();
}

void PrefixStore::SaveBeforeItGoes(EntryPlace entry) {
  while (saving_.has_value() && saving_->entry == entry &&
         archive_->n_waiting_bytes() < kMostWaitingAtOnce) {
    CopyPiece();
  }
  if (saving_.has_value() && saving_->entry == entry) {
    LeaveUnsaved(entry);
    archive_->CountLost();
  }
  if (entry->is_saved) return;
  const PrefixArchive::Draft draft = DraftOf(*entry);
  if (!IsHeld(draft, When::kSettled)) SaveWhole(draft, *entry->cache);
}

void PrefixStore::SaveAll() {
  if (archive_ == nullptr) return;
  while (saving_.has_value() || (!entries_.empty() && BeginSaving(When::kAtTheEnd))) {
    while (archive_->n_waiting_bytes() >= kMostWaitingBytes) {
      archive_->WaitForChange(std::chrono::milliseconds(10));
    }
    CopyPiece();
  }
  archive_->Flush();
}

}  // namespace kvlathe

// How a cache is filled from a saved sequence (sequence_file.h).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/byte_reader.h"
#include "io/mapped_file.h"
#include "kv/blocks/sequence_file.h"
#include "kv/blocks/sequence_rows.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

// Hostile text in a message: one printable line.
std::string Printable(std::string_view text) {
  std::string line(text.substr(0, 200));
  for (char& c : line) {
    if (c < 32 || c == 127) c = '?';
  }
  return line;
}

Status CheckPlace(const SequenceFile& file, const SequencePlace& place, std::string_view path) {
  // The spec first: it decides the basis, which is part of the model.
  if (file.identity.spec != place.identity.spec) {
    return Error(StatusCode::kDataLoss, "{}: saved with --kv '{}', not with '{}'", path,
                 Printable(file.identity.spec), place.identity.spec);
  }
  if (file.identity.model != place.identity.model) {
    return Error(StatusCode::kDataLoss,
                 "{}: saved with another model or basis; load it with the model, --basis, --dtype "
                 "and -c that it was saved with",
                 path);
  }
  const CacheLayout& saved = file.layout;
  const CacheLayout& layout = *place.layout;
  if (saved.n_layers != layout.n_layers || saved.n_kv_heads != layout.n_kv_heads ||
      saved.head_dim != layout.head_dim || saved.n_sink != layout.n_sink ||
      saved.windows != layout.windows || saved.shapes != layout.shapes ||
      saved.storages != layout.storages || saved.seal != layout.seal ||
      saved.retention != layout.retention) {
    return Error(StatusCode::kDataLoss,
                 "{}: its rows have another shape than those of this model; load it with the "
                 "--dtype, --basis and --rate that it was saved with",
                 path);
  }
  if (file.n_tokens > place.max_tokens) {
    return Error(StatusCode::kInvalidArgument, "{}: holds {} positions, but the context is {}",
                 path, file.n_tokens, place.max_tokens);
  }
  return OkStatus();
}

// Entries that a head which had this length in the end may have had at n_tokens: the most of which
// no more would be sealed than were.
int64_t MostEntriesAt(const SequenceFile& file, const MergedLength& length, int n_tokens) {
  const CacheLayout& layout = file.layout;
  if (!layout.HasRunsOfHeads() || n_tokens > LastSealPoint(layout, file.n_tokens, file.n_prompt)) {
    return length.n_entries;
  }
  const int64_t most_open =
      (n_tokens <= file.n_prompt ? kBlockSize : layout.seal->buffer) + layout.seal->newest;
  const int n_blocks = n_tokens <= file.n_prompt ? length.n_prompt_blocks : length.n_sealed_blocks;
  return std::min<int64_t>(length.n_entries, int64_t{n_blocks} * kBlockSize + most_open);
}

// How many entries of its prompt each head kept, where heads dropped numbers of their own.
Status SetToKeep(const SequenceFile& file, SequenceCache* cache) {
  if (!file.layout.DropsByHead() || !file.layout.RepeatsPrompt(file.n_prompt)) return OkStatus();
  if (file.n_tokens < file.n_prompt) return OkStatus();
  std::vector<int64_t> n_to_keep;
  for (const MergedLength& length : file.merged) {
    n_to_keep.push_back(length.n_entries - (file.n_tokens - file.n_prompt));
    if (n_to_keep.back() < 1) {
      return Error(StatusCode::kDataLoss, "damaged: a head has kept nothing of its prompt");
    }
  }
  cache->SetToKeep(n_to_keep);
  return OkStatus();
}

void SetMergedOfLayer(const SequenceFile& file, int layer_idx, SequenceCache* cache) {
  if (!file.layout.MergesEntries() && !file.layout.SweepsEntries()) return;
  const int n_kv_heads = file.layout.n_kv_heads;
  for (int g = 0; g < n_kv_heads; ++g) {
    const MergedLength& length = file.merged[layer_idx * n_kv_heads + g];
    const int64_t n_held = std::max(0, cache->head(layer_idx, g).n_entries());
    cache->SetMerged(layer_idx, g,
                     std::min(n_held, MostEntriesAt(file, length, cache->n_tokens())));
  }
}

// Of the runs that are there by now, makes those smaller that were pressed, so that no more room is
// needed than was.
Status PressNewRuns(const SequenceFile& file, SequenceCache* cache) {
  if (file.pressed_runs.empty()) return OkStatus();
  const int n_runs = static_cast<int>(cache->head(0, 0).runs().size());
  for (const int r : file.pressed_runs) {
    if (r >= n_runs || cache->head(0, 0).runs()[r].entry_class == EntryClass::kPressed) continue;
    KVL_RETURN_IF_ERROR(cache->PressRun(r));
  }
  return OkStatus();
}

// In steps, so that a window is never exceeded by more than a block, and the last of one position:
// then the blocks of the file are the ones that are held. Runs get their objects.
Status ExtendTo(const SequenceFile& file, SequenceCache* cache) {
  cache->set_n_prompt(file.n_prompt, file.n_generated);
  if (file.n_tokens >= file.n_prompt) cache->SkipReadingAgain();
  KVL_RETURN_IF_ERROR(SetToKeep(file, cache));
  while (cache->n_tokens() < file.n_tokens) {
    const int64_t n_left = file.n_tokens - cache->n_tokens();
    const int64_t n = n_left == 1 ? 1 : std::min<int64_t>(kBlockSize, n_left - 1);
    KVL_RETURN_IF_ERROR(cache->Extend(static_cast<int>(std::min(n, cache->max_step()))));
    for (int l = 0; l < file.layout.n_layers; ++l) {
      SetMergedOfLayer(file, l, cache);
      if (cache->must_reopen(l)) {
        KVL_ASSIGN_OR_RETURN(const auto kept, cache->TakeKeptBlocks(l));
        cache->PlaceKeptBlocks(l, kept);
      }
      if (cache->must_prune()) cache->DropPruned(l);
      if (cache->must_cut_keys()) KVL_RETURN_IF_ERROR(cache->ShrinkBlocks(l));
      if (!cache->must_seal()) continue;
      KVL_ASSIGN_OR_RETURN(const RunObjects objects, cache->TakeRunObjects(l));
      cache->PlaceRun(l, objects);
    }
    KVL_RETURN_IF_ERROR(PressNewRuns(file, cache));
  }
  if (MergedLengths(*cache, file.layout) == file.merged) return OkStatus();
  return Error(StatusCode::kDataLoss,
               "damaged: its heads cannot have merged, dropped and sealed what it says");
}

// Takes the parts off `state` and has the other machines restore them.
Status RestoreParts(const SequenceIdentity& identity, const SequenceCache& cache,
                    std::string_view* state) {
  ByteReader reader(std::as_bytes(std::span(*state)));
  uint32_t n_parts = 0;
  std::vector<std::string> parts;
  bool is_whole = reader.Read(&n_parts);
  for (uint32_t i = 0; is_whole && i < n_parts; ++i) {
    uint64_t n_bytes = 0;
    std::string_view part;
    is_whole = reader.Read(&n_bytes) && reader.ReadBytes(n_bytes, &part);
    if (is_whole) parts.emplace_back(part);
  }
  if (!is_whole) return Error(StatusCode::kDataLoss, "damaged: parts of the cache are missing");
  *state = state->substr(state->size() - reader.rest().size());
  return cache.journal()->RestoreParts(cache.number(), identity, parts);
}

// After an error the cache has to be cleared.
Status RestoreParsed(const SequenceFile& file, SequenceCache* cache, std::string* state) {
  std::string_view kept = file.state;
  KVL_RETURN_IF_ERROR(ExtendTo(file, cache));
  if (file.n_tokens > 0 && !CopyRows(file.rows, file.layout, cache)) {
    return Error(StatusCode::kDataLoss, "damaged: what its blocks share points outside of them");
  }
  if (cache->journal() != nullptr) {
    KVL_RETURN_IF_ERROR(RestoreParts(file.identity, *cache, &kept));
  }
  *state = kept;
  return OkStatus();
}

}  // namespace

StatusOr<std::string> RestoreSequence(std::span<const std::byte> bytes, std::string_view name,
                                      const SequencePlace& place, SequenceCache* cache) {
  KVL_CHECK_EQ(cache->n_tokens(), 0);
  KVL_ASSIGN_OR_RETURN(const SequenceFile file, ParseSequenceFile(bytes, name));
  KVL_RETURN_IF_ERROR(CheckPlace(file, place, name));
  cache->set_told(false);
  std::string state;
  const Status restored = RestoreParsed(file, cache, &state);
  if (!restored.ok()) cache->Clear();
  cache->set_told(true);
  if (!restored.ok()) return Error(restored.code(), "{}: {}", name, MessageOf(restored));
  return state;
}

StatusOr<std::string> RestoreSequence(const std::string& path, const SequencePlace& place,
                                      SequenceCache* cache) {
  KVL_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  return RestoreSequence(mapped.bytes(), path, place, cache);
}

}  // namespace kvlathe

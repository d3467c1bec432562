#include "kv/blocks/block_pool.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/units.h"
#include "kv/blocks/chunk.h"
#include "kv/cache_layout.h"

namespace kvlathe {
namespace {

constexpr int64_t kMaxChunkBytes = int64_t{1} << 20;
// Bounds the slot records of a chunk of tiny objects (8 bytes a slot).
constexpr int64_t kMaxSlots = 1024;
// Free pages that the pool may hold: enough that a sequence which stops and one which starts do not
// both go to the system, well inside the promised reserved <= 1.10 x used above 64 MiB.
constexpr int64_t kMinSlackBytes = int64_t{4} << 20;
constexpr int64_t kSlackDivisor = 16;

}  // namespace

struct BlockPool::State {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;
  int64_t aside_bytes = 0;
  int64_t held_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t used_by_kind[kNumObjectKinds] = {};
  std::map<std::byte*, std::unique_ptr<Chunk>> chunks;  // by base
  // Per object size the bases of chunks with a free slot. The lowest is filled first, so that the
  // others can drain.
  std::unordered_map<int64_t, std::set<std::byte*>> open_chunks;
  std::deque<std::byte*> freed_chunks;  // bases of chunks marked `queued`, oldest first

  Chunk& ChunkOf(const std::byte* object) {
    auto it = chunks.upper_bound(const_cast<std::byte*>(object));
    KVL_CHECK(it != chunks.begin());
    return *std::prev(it)->second;
  }
  Chunk* OpenChunk(int64_t object_bytes);
  std::byte* Take(ObjectKind kind, int64_t object_bytes);
  void Free(Chunk& chunk);
  void TrimToSlack();
  void Trim(Chunk& chunk);
  void Count(ObjectKind kind, int64_t n_bytes) {
    used_bytes += n_bytes;
    used_by_kind[static_cast<int>(kind)] += n_bytes;
    peak_bytes = std::max(peak_bytes, used_bytes);
  }
};

// A chunk with a free slot of this size; null when the system has no room.
Chunk* BlockPool::State::OpenChunk(int64_t object_bytes) {
  std::set<std::byte*>& open = open_chunks[object_bytes];
  if (!open.empty()) return chunks.find(*open.begin())->second.get();
  const int64_t n_slots = std::clamp<int64_t>(kMaxChunkBytes / object_bytes, 1, kMaxSlots);
  auto chunk = std::make_unique<Chunk>(object_bytes, static_cast<int>(n_slots));
  std::byte* base = chunk->base();
  if (base == nullptr) return nullptr;
  open.insert(base);
  return chunks.emplace(base, std::move(chunk)).first->second.get();
}

std::byte* BlockPool::State::Take(ObjectKind kind, int64_t object_bytes) {
  Chunk* chunk = OpenChunk(object_bytes);
  if (chunk == nullptr) return nullptr;
  held_bytes -= chunk->held_bytes();
  std::byte* object = chunk->Take(kind);
  held_bytes += chunk->held_bytes();
  if (chunk->full()) open_chunks[object_bytes].erase(chunk->base());
  return object;
}

// After a slot of `chunk` became free.
void BlockPool::State::Free(Chunk& chunk) {
  open_chunks[chunk.object_bytes()].insert(chunk.base());
  if (!chunk.queued) {
    chunk.queued = true;
    freed_chunks.push_back(chunk.base());
  }
}

// Each chunk is visited at most once per object freed in it.
void BlockPool::State::TrimToSlack() {
  const int64_t slack_bytes = std::max(kMinSlackBytes, used_bytes / kSlackDivisor);
  while (held_bytes - used_bytes > slack_bytes && !freed_chunks.empty()) {
    Chunk& chunk = *chunks.find(freed_chunks.front())->second;
    freed_chunks.pop_front();
    Trim(chunk);
  }
}

void BlockPool::State::Trim(Chunk& chunk) {
  chunk.queued = false;
  held_bytes -= chunk.held_bytes();
  if (chunk.empty()) {
    const auto open = open_chunks.find(chunk.object_bytes());
    open->second.erase(chunk.base());
    if (open->second.empty()) open_chunks.erase(open);
    chunks.erase(chunk.base());
    return;
  }
  chunk.ReturnFreePages();
  held_bytes += chunk.held_bytes();
}

BlockPool::BlockPool(int64_t budget_bytes) : state_(std::make_unique<State>()) {
  state_->budget_bytes = budget_bytes;
}

BlockPool::~BlockPool() = default;

std::byte* BlockPool::Allocate(ObjectKind kind, int64_t n_bytes) {
  KVL_CHECK_GT(n_bytes, 0);
  if (!HasRoomFor(n_bytes)) return nullptr;  // first: rounding up what fits cannot overflow
  n_bytes = RoundUp(n_bytes, kObjectAlignment);
  if (!HasRoomFor(n_bytes)) return nullptr;
  std::byte* object = state_->Take(kind, n_bytes);
  if (object != nullptr) state_->Count(kind, n_bytes);
  return object;
}

std::byte* BlockPool::Resize(std::byte* object, int64_t n_bytes) {
  KVL_CHECK_GT(n_bytes, 0);
  Chunk& from = state_->ChunkOf(object);
  KVL_CHECK_EQ(from.n_references(object), 1u);
  n_bytes = RoundUp(n_bytes, kObjectAlignment);
  const int64_t difference = n_bytes - from.object_bytes();
  if (difference == 0) return object;
  if (difference > 0 && !HasRoomFor(difference)) return nullptr;
  const ObjectKind kind = from.kind(object);
  std::byte* moved = state_->Take(kind, n_bytes);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, object, std::min(n_bytes, from.object_bytes()));
  from.Drop(object);
  state_->Free(from);
  state_->Count(kind, difference);
  state_->TrimToSlack();
  return moved;
}

std::byte* BlockPool::CopyOf(const std::byte* object) {
  const Chunk& from = state_->ChunkOf(object);
  const int64_t n_bytes = from.object_bytes();
  std::byte* copy = Allocate(from.kind(object), n_bytes);
  if (copy != nullptr) std::memcpy(copy, object, n_bytes);
  return copy;
}

void BlockPool::AddReference(std::byte* object) { state_->ChunkOf(object).AddReference(object); }

void BlockPool::Release(std::byte* object) {
  Chunk& chunk = state_->ChunkOf(object);
  const ObjectKind kind = chunk.kind(object);
  if (!chunk.Drop(object)) return;
  state_->Free(chunk);
  state_->Count(kind, -chunk.object_bytes());
  state_->TrimToSlack();
}

bool BlockPool::SetAside(int64_t n_bytes) {
  if (!HasRoomFor(n_bytes)) return false;
  state_->aside_bytes += n_bytes;
  return true;
}

void BlockPool::ReturnAside(int64_t n_bytes) {
  KVL_CHECK_LE(n_bytes, state_->aside_bytes);
  state_->aside_bytes -= n_bytes;
}

bool BlockPool::HasRoomFor(int64_t n_bytes) const {
  return n_bytes <= state_->budget_bytes - state_->used_bytes - state_->aside_bytes;
}

PoolUsage BlockPool::usage() const {
  PoolUsage usage;
  usage.budget_bytes = state_->budget_bytes;
  usage.used_bytes = state_->used_bytes;
  usage.reserved_bytes = state_->held_bytes;
  usage.peak_bytes = state_->peak_bytes;
  std::copy_n(state_->used_by_kind, kNumObjectKinds, usage.used_by_kind);
  return usage;
}

}  // namespace kvlathe

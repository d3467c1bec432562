#include "kv/blocks/block_pool.h"

#include <algorithm>
#include <deque>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "kv/blocks/chunk.h"
#include "kv/cache_layout.h"

namespace kvlathe {
namespace {

constexpr int64_t kMaxChunkBytes = int64_t{1} << 20;
// Bounds the slot records of a chunk of tiny objects (12 bytes a slot).
constexpr int64_t kMaxSlots = 1024;
// Free pages that the pool may hold: enough that a sequence which stops and one which starts do not
// both go to the system, well inside the promised reserved <= 1.10 x used above 64 MiB.
constexpr int64_t kMinSlackBytes = int64_t{4} << 20;
constexpr int64_t kSlackDivisor = 16;

}  // namespace

static_assert(kObjectAlignment % kDeviceAlignment == 0);

struct BlockPool::State {
  Device* device = nullptr;
  int64_t number = 0;  // in the journal
  int64_t budget_bytes = 0;
  int64_t elsewhere_bytes = 0;  // SetMoreElsewhere
  int64_t used_bytes = 0;
  int64_t aside_bytes = 0;
  int64_t held_bytes = 0;
  int64_t kept_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t used_by_kind[kNumObjectKinds] = {};
  std::unordered_map<uint32_t, std::unique_ptr<Chunk>> chunks;  // by region
  // Per object size the regions of chunks with a free slot. The lowest is filled first, so that the
  // others can drain.
  std::unordered_map<int64_t, std::set<uint32_t>> open_chunks;
  std::deque<uint32_t> freed_chunks;  // regions of chunks marked `queued`, oldest first

  Chunk& ChunkOf(const ObjectId& object) {
    const auto it = chunks.find(object.region);
    KVL_CHECK(it != chunks.end());
    return *it->second;
  }
  // change(chunk) changes who holds the object.
  template <typename F>
  void ChangeReferences(const ObjectId& object, const F& change) {
    Chunk& chunk = ChunkOf(object);
    const bool was_kept = chunk.IsKept(object);
    change(chunk);
    const int difference = static_cast<int>(chunk.IsKept(object)) - static_cast<int>(was_kept);
    kept_bytes += difference * chunk.object_bytes();
  }
  Chunk* OpenChunk(int64_t object_bytes);
  ObjectId Take(ObjectKind kind, int64_t object_bytes);
  void Free(Chunk& chunk);
  // Gives up an object for another one that was taken for it, and counts the difference.
  void Move(const ObjectId& object, const ObjectId& to);
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
  std::set<uint32_t>& open = open_chunks[object_bytes];
  if (!open.empty()) return chunks.find(*open.begin())->second.get();
  const int64_t n_slots = std::clamp<int64_t>(kMaxChunkBytes / object_bytes, 1, kMaxSlots);
  auto chunk = std::make_unique<Chunk>(device, object_bytes, static_cast<int>(n_slots));
  const uint32_t region = chunk->region();
  if (region == 0) return nullptr;
  open.insert(region);
  return chunks.emplace(region, std::move(chunk)).first->second.get();
}

ObjectId BlockPool::State::Take(ObjectKind kind, int64_t object_bytes) {
  Chunk* chunk = OpenChunk(object_bytes);
  if (chunk == nullptr) return {};
  held_bytes -= chunk->held_bytes();
  const ObjectId object = chunk->Take(kind);
  held_bytes += chunk->held_bytes();
  if (chunk->full()) open_chunks[object_bytes].erase(chunk->region());
  return object;
}

// After a slot of `chunk` became free.
void BlockPool::State::Free(Chunk& chunk) {
  open_chunks[chunk.object_bytes()].insert(chunk.region());
  if (!chunk.queued) {
    chunk.queued = true;
    freed_chunks.push_back(chunk.region());
  }
}

void BlockPool::State::Move(const ObjectId& object, const ObjectId& to) {
  Chunk& from = ChunkOf(object);
  const int64_t n_bytes = ChunkOf(to).object_bytes();
  device->Copy({to}, {object}, std::min(n_bytes, from.object_bytes()));
  device->Forget({object}, from.object_bytes());
  Count(from.kind(object), n_bytes - from.object_bytes());
  from.Drop(object);
  Free(from);
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
    open->second.erase(chunk.region());
    if (open->second.empty()) open_chunks.erase(open);
    chunks.erase(chunk.region());
    return;
  }
  chunk.ReturnFreePages();
  held_bytes += chunk.held_bytes();
}

BlockPool::BlockPool(int64_t budget_bytes, Device* device) : state_(std::make_unique<State>()) {
  state_->budget_bytes = budget_bytes;
  state_->device = device;
  if (journal() != nullptr) state_->number = journal()->PoolMade(this);
}

BlockPool::~BlockPool() {
  if (journal() != nullptr) journal()->PoolGone(state_->number);
}

Device& BlockPool::device() const { return *state_->device; }

void BlockPool::SetMoreElsewhere(int64_t n_bytes) { state_->elsewhere_bytes = n_bytes; }

CacheJournal* BlockPool::journal() const { return state_->device->journal(); }

int64_t BlockPool::number() const { return state_->number; }

ObjectId BlockPool::Allocate(ObjectKind kind, int64_t n_bytes) {
  KVL_CHECK_GT(n_bytes, 0);
  if (!HasRoomFor(n_bytes)) return {};  // first: rounding up what fits cannot overflow
  n_bytes = RoundUp(n_bytes, kObjectAlignment);
  if (!HasRoomFor(n_bytes)) return {};
  const ObjectId object = state_->Take(kind, n_bytes);
  if (!object.is_null()) state_->Count(kind, n_bytes);
  return object;
}

ObjectId BlockPool::Resize(const ObjectId& object, int64_t n_bytes) {
  KVL_CHECK_GT(n_bytes, 0);
  Chunk& from = state_->ChunkOf(object);
  KVL_CHECK_EQ(from.n_references(object), 1u);
  n_bytes = RoundUp(n_bytes, kObjectAlignment);
  const int64_t difference = n_bytes - from.object_bytes();
  if (difference == 0) return object;
  if (difference > 0 && !HasRoomFor(difference)) return {};
  const ObjectKind kind = from.kind(object);
  const ObjectId moved = state_->Take(kind, n_bytes);
  if (moved.is_null()) return {};
  state_->Move(object, moved);
  state_->TrimToSlack();
  return moved;
}

bool BlockPool::ShrinkAll(std::span<const Shrinking> objects) {
  std::vector<ObjectId> taken;
  for (const auto& [object, n_bytes] : objects) {
    KVL_CHECK_GT(n_bytes, 0);
    const Chunk& from = state_->ChunkOf(*object);
    KVL_CHECK_EQ(from.n_references(*object), 1u);
    const int64_t object_bytes = RoundUp(n_bytes, kObjectAlignment);
    KVL_CHECK_LE(object_bytes, from.object_bytes());
    const bool stays = object_bytes == from.object_bytes();
    taken.push_back(stays ? *object : state_->Take(from.kind(*object), object_bytes));
    if (!taken.back().is_null()) continue;
    taken.pop_back();
    for (size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] == *objects[i].object) continue;
      Chunk& chunk = state_->ChunkOf(taken[i]);
      chunk.Drop(taken[i]);
      state_->Free(chunk);
    }
    state_->TrimToSlack();
    return false;
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i] == *objects[i].object) continue;
    state_->Move(*objects[i].object, taken[i]);
    *objects[i].object = taken[i];
  }
  state_->TrimToSlack();
  return true;
}

ObjectId BlockPool::CopyOf(const ObjectId& object) {
  const Chunk& from = state_->ChunkOf(object);
  const int64_t n_bytes = from.object_bytes();
  const ObjectId copy = Allocate(from.kind(object), n_bytes);
  if (!copy.is_null()) state_->device->Copy({copy}, {object}, n_bytes);
  return copy;
}

void BlockPool::AddReference(const ObjectId& object) {
  state_->ChangeReferences(object, [&](Chunk& chunk) { chunk.AddReference(object); });
}

void BlockPool::AddKeeper(const ObjectId& object) {
  state_->ChangeReferences(object, [&](Chunk& chunk) { chunk.AddKeeper(object); });
}

void BlockPool::RemoveKeeper(const ObjectId& object) {
  state_->ChangeReferences(object, [&](Chunk& chunk) { chunk.RemoveKeeper(object); });
}

bool BlockPool::IsShared(const ObjectId& object) const {
  return state_->ChunkOf(object).n_references(object) > 1;
}

void BlockPool::Release(const ObjectId& object) {
  Chunk& chunk = state_->ChunkOf(object);
  const ObjectKind kind = chunk.kind(object);
  if (!chunk.Drop(object)) {
    // It was not before: a keeper says that it goes before its reference does.
    if (chunk.IsKept(object)) state_->kept_bytes += chunk.object_bytes();
    return;
  }
  state_->device->Forget({object}, chunk.object_bytes());
  state_->Free(chunk);
  state_->Count(kind, -chunk.object_bytes());
  state_->TrimToSlack();
}

bool BlockPool::CountHostTables(int64_t difference) {
  if (difference > 0 && !HasRoomFor(difference)) return false;
  state_->held_bytes += difference;
  state_->Count(ObjectKind::kTable, difference);
  return true;
}

void BlockPool::CountKeptTables(int64_t difference) { state_->kept_bytes += difference; }

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
  return n_bytes <=
         state_->budget_bytes - state_->elsewhere_bytes - state_->used_bytes - state_->aside_bytes;
}

PoolUsage BlockPool::usage() const {
  PoolUsage usage;
  usage.budget_bytes = state_->budget_bytes - state_->elsewhere_bytes;
  usage.used_bytes = state_->used_bytes;
  usage.reserved_bytes = state_->held_bytes;
  usage.peak_bytes = state_->peak_bytes;
  usage.kept_bytes = state_->kept_bytes;
  std::copy_n(state_->used_by_kind, kNumObjectKinds, usage.used_by_kind);
  return usage;
}

}  // namespace kvlathe

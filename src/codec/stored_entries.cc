#include "codec/stored_entries.h"

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "base/clock.h"
#include "format/entry_table.h"
#include "model/steps/sealed_head.h"

namespace kvlathe {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;

// What one head of the cache holds: rows as they are stored.
struct HeadEntries {
  int n_sinks = 0;
  std::vector<int> positions;  // of sinks and blocks
  RowMatrix sink_k, sink_v;    // whole keys; values of the sinks' own rank
  RowMatrix k, v;              // of the entries in blocks, where maps are undone
  bool has_whole_keys = false;
};

// Whether keys are turned on their way back.
bool NeedsPositions(const Keys& keys) {
  return TurnWhenRead(keys) || TurningPairs(keys) > 0 || HasFrames(keys);
}

class EntryReader {
 public:
  explicit EntryReader(const EntryReading& reading)
      : layer_(*reading.layer),
        cache_(*reading.cache),
        machine_(*reading.machine),
        profile_(*reading.profile),
        scratch_(*reading.scratch),
        heads_(layer_.layout().n_kv_heads) {}

  StatusOr<StoredEntries> Read(const EntryTarget* target);

 private:
  Status CheckIsRead() const;
  // Whether it is known which positions the entries are.
  bool has_positions() const;
  // Lists the blocks of all heads; those in front that left the window stand for nothing.
  void FindBlocks();
  // Makes plain blocks of the blocks of some heads, or takes them as they are where none are
  // sealed.
  Status OpenBlocks(const Range& heads);
  // Brings rows of all heads out of their blocks: to where they are wanted, where no map is undone.
  // Few heads are open at a time, so that what is opened is still in the cache when it is read.
  Status ReadBlocks(const EntryTarget& to);
  // fn(kv_head_idx) on all threads.
  template <typename F>
  void ForHeads(const Range& heads, const F& fn);
  // Finds the sinks of the head and the positions of all that it holds.
  void ListEntries(int kv_head_idx);
  void Unpack(int kv_head_idx, const RowsOfHead& to) const;
  void CopyBack(int kv_head_idx, const EntryTarget& to) const;
  bool maps_rows() const { return layer_.basis(0) != nullptr; }
  void UnpackSinks(int kv_head_idx, HeadEntries* head) const;
  std::vector<int> PositionsOf(int kv_head_idx) const;
  // Rows of the model's heads that this head of the cache holds.
  void MapBack(int kv_head_idx, int n_heads, const EntryTarget& to) const;
  RowMatrix KeysOf(int kv_head_idx) const;
  RowMatrix ValuesOf(int kv_head_idx) const;
  // Slices of all heads that share latents, side by side: in `joined`, where there are several.
  const RowMatrix& Joined(int kv_head_idx, RowMatrix HeadEntries::*side, RowMatrix* joined) const;
  void TurnKey(int position, bool is_sink, const float* mean, float* row) const;

  int first_open(const CacheHead& head) const;

  const CodecLayer& layer_;
  const SequenceCache& cache_;
  Machine& machine_;
  ForwardProfile& profile_;
  ScratchBlocks& scratch_;
  std::vector<HeadEntries> heads_;
  std::vector<std::vector<ObjectId>> blocks_, plain_;  // of the heads
  std::vector<int> n_gone_;                            // blocks that left the window
};

Status EntryReader::CheckIsRead() const {
  const CacheLayout& layout = layer_.layout();
  if (layout.MergesEntries()) {
    return Error(StatusCode::kUnimplemented,
                 "several positions are one entry here, so there are no rows of positions");
  }
  if (layer_.layer().online != nullptr) {
    return Error(StatusCode::kUnimplemented,
                 "rows are in bases that the sequence found itself, and are not read back");
  }
  if (has_positions() || !NeedsPositions(layer_.layer().rows.keys)) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "the cache keeps no positions of its entries, by which its keys would be turned");
}

bool EntryReader::has_positions() const {
  const CacheLayout& layout = layer_.layout();
  const CacheHead head = cache_.head(0, 0);
  if (layout.HasClasses() && !head.runs().empty()) return false;  // in the order of classes
  const bool has_dropped = cache_.n_tokens() - layout.n_sink > head.n_entries();
  return !layout.DropsEntries() || !head.entries().empty() || !has_dropped;
}

int EntryReader::first_open(const CacheHead& head) const {
  const std::span<const SealedRun> runs = head.runs();
  return runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
}

void EntryReader::FindBlocks() {
  for (int g = 0; g < std::ssize(heads_); ++g) {
    const CacheHead head = cache_.head(0, g);
    const auto n_blocks = (std::max(0, head.n_entries()) + kBlockSize - 1) / kBlockSize;
    auto& blocks = blocks_.emplace_back(head.blocks().begin(), head.blocks().begin() + n_blocks);
    const auto held = std::ranges::find_if_not(blocks, &ObjectId::is_null);
    n_gone_.push_back(static_cast<int>(held - blocks.begin()));
    if (held != blocks.end()) std::fill(blocks.begin(), held, *held);  // read for nothing
  }
  plain_.resize(heads_.size());
}

Status EntryReader::OpenBlocks(const Range& heads) {
  const CacheLayout& layout = layer_.layout();
  if (!layout.seal.has_value()) {
    for (int64_t g = heads.begin; g < heads.end; ++g) plain_[g] = blocks_[g];
    return OkStatus();
  }
  const Layer& layer = layer_.layer();
  KVL_ASSIGN_OR_RETURN(KeyRotationId rotation,
                       layer_.kind().rotations.BlocksOf(0, BlocksFor(layout, cache_.n_tokens())));
  if (!layout.seal->format.seals_keys_before_rope()) rotation = KeyRotationId();
  std::vector<OpenedRun> opened;
  scratch_.Begin();
  for (auto g = static_cast<int>(heads.begin); g < heads.end; ++g) {
    const int n_blocks = static_cast<int>(std::ssize(blocks_[g]));
    if (n_gone_[g] == n_blocks) continue;
    const CacheHead head = cache_.head(0, g);
    KVL_ASSIGN_OR_RETURN(plain_[g], scratch_.Take(n_blocks, BlockBytes(head.shape())));
    SealedHead sealed = SealedHeadOf(layer, layout, g, head.runs(), rotation);
    if (layout.CodesOpenRows()) {
      const int first = first_open(head);
      sealed.open = {.first_block = first, .n_blocks = n_blocks - first};
    }
    opened.push_back({.device = &cache_.device(),
                      .shape = head.shape(),
                      .sealed = sealed,
                      .blocks = blocks_[g],
                      .plain = plain_[g]});
  }
  if (opened.empty()) return OkStatus();
  const ScopedTimer timer(&profile_.rebuild);
  machine_.backend().Open(opened);
  return machine_.backend().Finish().status();
}

std::vector<int> EntryReader::PositionsOf(int kv_head_idx) const {
  const CacheHead head = cache_.head(0, kv_head_idx);
  const int n_entries = std::max(0, head.n_entries());
  std::vector<int> positions(n_entries);
  const EntryTableId table = head.entries();
  if (table.empty()) {
    for (int e = 0; e < n_entries; ++e) positions[e] = layer_.layout().n_sink + e;
    return positions;
  }
  const int64_t n_blocks = (n_entries + kBlockSize - 1) / kBlockSize;
  std::vector<std::byte> bytes(n_blocks * EntryTable::BlockBytes(table.has_sums));
  cache_.device().Download({table.object}, bytes);
  const EntryTable entries(bytes.data(), table.has_sums);
  for (int e = 0; e < n_entries; ++e) positions[e] = entries.position(e);
  return positions;
}

void EntryReader::UnpackSinks(int kv_head_idx, HeadEntries* head) const {
  const CacheLayout& layout = layer_.layout();
  const CacheHead held = cache_.head(0, kv_head_idx);
  if (held.sink_k().is_null()) return;
  const int n = std::min(layout.n_sink, cache_.n_tokens());
  const int k_width = layer_.layer().rows.key_dim(), v_width = held.shape().sink_value_width();
  const DType type = held.shape().row_type;
  head->n_sinks = n;
  const auto read = [&](const ObjectPlace& place, int width, RowMatrix* rows) {
    std::vector<std::byte> bytes(int64_t{n} * width * SizeOf(type));
    cache_.device().Download(place, bytes);
    rows->resize(n, width);
    ConvertToFloat(type, bytes.data(), rows->size(), rows->data());
  };
  read(held.sink_k(), k_width, &head->sink_k);
  read(held.sink_v(), v_width, &head->sink_v);
}

void EntryReader::ListEntries(int kv_head_idx) {
  HeadEntries& head = heads_[kv_head_idx];
  UnpackSinks(kv_head_idx, &head);
  const CacheHead held = cache_.head(0, kv_head_idx);
  head.has_whole_keys = cache_.has_whole_keys(0);
  const int n_gone = n_gone_[kv_head_idx] * kBlockSize;
  const int n_entries = std::max(0, held.n_entries()), n = std::max(0, n_entries - n_gone);
  for (int p = 0; p < head.n_sinks; ++p) head.positions.push_back(p);
  const std::vector<int> positions = PositionsOf(kv_head_idx);
  head.positions.insert(head.positions.end(), positions.end() - n, positions.end());
}

void EntryReader::Unpack(int kv_head_idx, const RowsOfHead& to) const {
  const BlockShape shape = cache_.head(0, kv_head_idx).shape();
  const HeadEntries& head = heads_[kv_head_idx];
  const int64_t n = std::ssize(head.positions) - head.n_sinks;
  const std::vector<ObjectId>& blocks = plain_[kv_head_idx];
  Device& memory = cache_.device();
  std::vector<std::byte> bytes;
  for (int64_t row = 0; row < n; row += kBlockSize) {
    const ObjectPlace block = {blocks[n_gone_[kv_head_idx] + row / kBlockSize]};
    const std::byte* from = memory.HostView(block);
    if (from == nullptr) {
      bytes.resize(BlockBytes(shape));
      memory.Download(block, bytes);
      from = bytes.data();
    }
    const RowsOfHead rows = {to.k + row * to.k_stride, to.k_stride, to.v + row * to.v_stride,
                             to.v_stride};
    const auto n_rows = static_cast<int>(std::min<int64_t>(kBlockSize, n - row));
    UnpackBlock(shape, from, n_rows, rows);
  }
}

// Of a head that nothing maps: its rows go where they are wanted.
void EntryReader::CopyBack(int kv_head_idx, const EntryTarget& to) const {
  const HeadEntries& head = heads_[kv_head_idx];
  const int64_t d = layer_.layer().rows.head_dim, stride = std::ssize(heads_) * d;
  float *const k = to.k + kv_head_idx * d, *const v = to.v + kv_head_idx * d;
  for (int64_t e = 0; e < head.n_sinks; ++e) {
    std::copy_n(head.sink_k.row(e).data(), d, k + e * stride);
    std::copy_n(head.sink_v.row(e).data(), d, v + e * stride);
  }
  Unpack(kv_head_idx, {k + head.n_sinks * stride, stride, v + head.n_sinks * stride, stride});
  const std::span<const float> offset = layer_.key_offset(kv_head_idx);
  if (offset.empty()) return;
  for (int64_t e = 0; e < to.n_entries; ++e) {
    for (int64_t i = 0; i < d; ++i) k[e * stride + i] += offset[i];
  }
}

const RowMatrix& EntryReader::Joined(int kv_head_idx, RowMatrix HeadEntries::*side,
                                     RowMatrix* joined) const {
  const int n = layer_.layer().rows.heads_per_latent(), first = kv_head_idx / n * n;
  if (n == 1) return heads_[kv_head_idx].*side;
  int64_t width = 0;
  for (int g = first; g < first + n; ++g) width += (heads_[g].*side).cols();
  joined->resize((heads_[first].*side).rows(), width);
  int64_t at = 0;
  for (int g = first; g < first + n; ++g) {
    const RowMatrix& slice = heads_[g].*side;
    joined->middleCols(at, slice.cols()) = slice;
    at += slice.cols();
  }
  return *joined;
}

// The first rows of a map [n_all, n_columns] as rows of n numbers meet it: those that are not
// stored are zero.
ConstMap FirstRows(const std::vector<float>& map, int64_t n, int64_t n_columns) {
  return {map.data(), n, n_columns};
}

RowMatrix EntryReader::KeysOf(int kv_head_idx) const {
  const HeadEntries& head = heads_[kv_head_idx];
  const HeadBasis* const basis = layer_.basis(kv_head_idx);
  const Keys& keys = layer_.layer().rows.keys;
  const int width = layer_.layer().rows.key_dim();
  RowMatrix all(head.n_sinks + head.k.rows(), width);
  if (head.n_sinks > 0) all.topRows(head.n_sinks) = head.sink_k;
  auto entries = all.bottomRows(head.k.rows());
  RowMatrix joined;
  if (!FactsOf(keys).are_mapped || head.has_whole_keys) {
    entries = head.k;
  } else if (TurnWhenRead(keys)) {
    const RowMatrix& k = Joined(kv_head_idx, &HeadEntries::k, &joined);
    entries.noalias() = k * FirstRows(basis->key_way_back, k.cols(), width);
  } else {
    entries.noalias() = head.k * ConstMap(basis->query_basis.data(), width, basis->rank_k)
                                     .leftCols(head.k.cols())
                                     .transpose();
  }
  if (basis->key_offset.empty()) return all;
  const bool lose_all = FactsOf(keys).are_mapped && !TurnWhenRead(keys) && !HasFrames(keys);
  const auto offset = ConstMap(basis->key_offset.data(), 1, width).row(0);
  if (lose_all) {
    all.rowwise() += offset;
  } else if (!head.has_whole_keys || TurnWhenRead(keys)) {
    entries.rowwise() += offset;
  }
  return all;
}

RowMatrix EntryReader::ValuesOf(int kv_head_idx) const {
  const HeadEntries& head = heads_[kv_head_idx];
  const HeadBasis* const basis = layer_.basis(kv_head_idx);
  const int width = layer_.layer().rows.key_dim();
  RowMatrix all(head.n_sinks + head.v.rows(), width);
  auto entries = all.bottomRows(head.v.rows());
  RowMatrix joined;
  if (!layer_.layer().rows.maps_values) {
    if (head.n_sinks > 0) all.topRows(head.n_sinks) = head.sink_v;
    entries = head.v;
  } else {
    if (head.n_sinks > 0) {
      const RowMatrix& sinks = Joined(kv_head_idx, &HeadEntries::sink_v, &joined);
      all.topRows(head.n_sinks).noalias() =
          sinks * FirstRows(basis->output_basis, sinks.cols(), width);
    }
    const RowMatrix& v = Joined(kv_head_idx, &HeadEntries::v, &joined);
    entries.noalias() = v * FirstRows(basis->output_basis, v.cols(), width);
  }
  if (!basis->value_offset.empty()) {
    all.rowwise() += ConstMap(basis->value_offset.data(), 1, width).row(0);
  }
  return all;
}

// Adds the angles of pair i, whose channels are i and i + half, times the sign.
void TurnPair(const RopeTable& table, int position, int i, bool back, float* row) {
  const int half = table.rope_dim() / 2;
  const float cos = table.cos(position)[i], sin = table.sin(position)[i];
  const float x = row[i], y = row[i + half];
  const float scale = back ? table.way_back() : 1;
  const float s = back ? -sin : sin;
  row[i] = scale * (x * cos - y * s);
  row[i + half] = scale * (x * s + y * cos);
}

// Brings a key of the model's, as it is stored, to what it is after RoPE at its position.
void EntryReader::TurnKey(int position, bool is_sink, const float* mean, float* row) const {
  const Keys& keys = layer_.layer().rows.keys;
  const RopeTable& table = layer_.kind().ropes.of(0);
  const int d = layer_.layer().rows.head_dim, half = table.rope_dim() / 2;
  if (is_sink || !NeedsPositions(keys)) return;
  const int place = (position - layer_.layout().n_sink) % kFramePositions;
  for (int i = 0; i < half && !TurnWhenRead(keys); ++i) {
    const bool is_absolute = !HasFrames(keys) || i < table.absolute_pairs();
    TurnPair(table, is_absolute ? position : place, i, /*back=*/true, row);
  }
  for (int i = 0; i < d && mean != nullptr; ++i) row[i] += mean[i];
  for (int i = 0; i < half; ++i) TurnPair(table, position, i, /*back=*/false, row);
}

void EntryReader::MapBack(int kv_head_idx, int n_heads, const EntryTarget& to) const {
  const HeadEntries& head = heads_[kv_head_idx];
  const LayerRows& rows = layer_.layer().rows;
  const HeadBasis& basis = *layer_.basis(kv_head_idx);
  const int n_joined = rows.heads_per_map(), d = rows.head_dim;
  const RowMatrix k = KeysOf(kv_head_idx), v = ValuesOf(kv_head_idx);
  const bool turns = rows.maps_keys() && layer_.kind().config.rope_dim() > 0;
  for (int64_t e = 0; e < k.rows(); ++e) {
    for (int part = 0; part < n_joined; ++part) {
      const int64_t at = (e * n_heads + kv_head_idx * n_joined + part) * d;
      std::copy_n(k.row(e).data() + part * d, d, to.k + at);
      std::copy_n(v.row(e).data() + part * d, d, to.v + at);
      if (!turns) continue;
      const float* const mean =
          TurningPairs(rows.keys) > 0 ? &basis.turning_mean[part * d] : nullptr;
      TurnKey(head.positions[e], e < head.n_sinks, mean, to.k + at);
    }
  }
}

template <typename F>
void EntryReader::ForHeads(const Range& heads, const F& fn) {
  ThreadPool& threads = machine_.host_threads();
  threads.Run([&](int worker_id) {
    const Range mine = ShareOf(heads.end - heads.begin, 1, worker_id, threads.n_workers());
    for (int64_t g = mine.begin; g < mine.end; ++g) fn(static_cast<int>(heads.begin + g));
  });
}

Status EntryReader::ReadBlocks(const EntryTarget& to) {
  const int64_t n_heads = std::ssize(heads_), n_at_once = machine_.host_threads().n_workers();
  for (int64_t g = 0; g < n_heads; g += n_at_once) {
    const Range open = {g, std::min(n_heads, g + n_at_once)};
    KVL_RETURN_IF_ERROR(OpenBlocks(open));
    ForHeads(open, [&](int h) {
      if (!maps_rows()) return CopyBack(h, to);
      HeadEntries& head = heads_[h];
      const BlockShape shape = cache_.head(0, h).shape();
      const int64_t n = to.n_entries - head.n_sinks;
      head.k.resize(n, shape.rank_k);
      head.v.resize(n, shape.has_one_side ? shape.rank_k : shape.rank_v);
      Unpack(h, {head.k.data(), head.k.cols(), head.v.data(), head.v.cols()});
    });
  }
  return OkStatus();
}

StatusOr<StoredEntries> EntryReader::Read(const EntryTarget* target) {
  KVL_RETURN_IF_ERROR(CheckIsRead());
  FindBlocks();
  if (layer_.layer().rows.maps_keys()) layer_.kind().ropes.Extend(cache_.n_tokens());
  StoredEntries entries;
  const int n_joined = layer_.layer().rows.heads_per_map();
  entries.n_heads = layer_.layer().rows.n_model_kv_heads();
  for (int g = 0; g < std::ssize(heads_); ++g) {
    ListEntries(g);
    const std::vector<int>& positions = heads_[g].positions;
    if (g == 0) entries.n_entries = std::ssize(positions);
    if (std::ssize(positions) != entries.n_entries) {
      return Error(StatusCode::kUnimplemented, "heads hold numbers of entries of their own");
    }
    for (int part = 0; has_positions() && part < n_joined; ++part) {
      entries.positions.insert(entries.positions.end(), positions.begin(), positions.end());
    }
  }
  EntryTarget to;
  if (target != nullptr && target->n_entries == entries.n_entries) {
    to = *target;
  } else {
    entries.k.resize(entries.n_entries * entries.n_heads * layer_.layer().rows.head_dim);
    entries.v.resize(entries.k.size());
    to = {entries.k.data(), entries.v.data(), entries.n_entries};
  }
  KVL_RETURN_IF_ERROR(ReadBlocks(to));
  if (maps_rows()) {
    ForHeads({0, std::ssize(heads_)}, [&](int g) { MapBack(g, entries.n_heads, to); });
  }
  return entries;
}

}  // namespace

StatusOr<StoredEntries> ReadEntries(const EntryReading& reading, const EntryTarget* target) {
  return EntryReader(reading).Read(target);
}

}  // namespace kvlathe

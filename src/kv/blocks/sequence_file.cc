#include "kv/blocks/sequence_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "io/atomic_file.h"
#include "io/byte_reader.h"
#include "io/mapped_file.h"
#include "kv/quantizer/method.h"
#include "kv/spec.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMagic = "KVLSEQ\r\n";
constexpr uint32_t kVersion = 1;
constexpr int64_t kCrcBytes = 4;
// Bounds that keep every product below 2^63.
constexpr uint32_t kMaxTextBytes = 1 << 16;
constexpr uint32_t kMaxDim = 1 << 20;

constexpr DType kRowTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

// Hostile text in a message: one printable line.
std::string Printable(std::string_view text) {
  std::string line(text.substr(0, 200));
  for (char& c : line) {
    if (c < 32 || c == 127) c = '?';
  }
  return line;
}

bool ReadText(ByteReader* reader, std::string* text) {
  uint32_t n_bytes = 0;
  std::string_view view;
  if (!reader->Read(&n_bytes) || n_bytes > kMaxTextBytes || !reader->ReadBytes(n_bytes, &view)) {
    return false;
  }
  *text = view;
  return true;
}

void AppendText(std::string_view text, std::string* out) {
  AppendBytes(static_cast<uint32_t>(text.size()), out);
  out->append(text);
}

bool ReadShape(ByteReader* reader, BlockShape* shape) {
  uint32_t rank_k = 0, rank_v = 0, row_type = 0;
  if (!reader->Read(&rank_k) || !reader->Read(&rank_v) || !reader->Read(&row_type)) return false;
  if (rank_k > kMaxDim || rank_v > kMaxDim || row_type >= std::size(kRowTypes)) return false;
  *shape = {static_cast<int>(rank_k), static_cast<int>(rank_v), kRowTypes[row_type]};
  return true;
}

// The numbers behind the texts. Memory for the shapes is taken only as far as the file has them.
bool ReadLayout(ByteReader* reader, CacheLayout* layout, int* n_tokens, int64_t* n_prompt) {
  constexpr uint32_t kMaxInt = std::numeric_limits<int>::max();
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0, n_sink = 0;
  uint32_t window = 0, block_size = 0, tokens = 0;
  for (uint32_t* number :
       {&n_layers, &n_kv_heads, &head_dim, &n_sink, &window, &block_size, &tokens}) {
    if (!reader->Read(number)) return false;
  }
  if (!reader->Read(n_prompt) || *n_prompt < 0) return false;
  if (std::max({n_layers, n_kv_heads, head_dim, n_sink}) > kMaxDim || window > kMaxInt ||
      block_size != kBlockSize || tokens > kMaxInt) {
    return false;
  }
  layout->window = static_cast<int>(window);
  layout->n_layers = static_cast<int>(n_layers);
  layout->n_kv_heads = static_cast<int>(n_kv_heads);
  layout->head_dim = static_cast<int>(head_dim);
  layout->n_sink = static_cast<int>(n_sink);
  *n_tokens = static_cast<int>(tokens);
  for (uint64_t i = 0; i < uint64_t{n_layers} * n_kv_heads; ++i) {
    BlockShape shape;
    if (!ReadShape(reader, &shape)) return false;
    layout->shapes.push_back(shape);
  }
  return true;
}

// Blocks of every head, from the oldest, that the last position does not see.
int64_t UnseenBlocks(const CacheLayout& layout, int n_tokens) {
  return BlocksOutOfWindow(layout, n_tokens - 1);
}

// The sealed runs of which blocks are held, and what they are made of.
class HeldRuns {
 public:
  HeldRuns(const CacheLayout& layout, int n_tokens, int64_t n_prompt)
      : layout_(layout), n_unseen_(UnseenBlocks(layout, n_tokens)) {
    for (const RunExtent& run : RunsOf(layout, n_tokens, n_prompt)) {
      n_sealed_ = run.first_block + run.n_blocks;
      if (n_sealed_ > n_unseen_)
        runs_.push_back(run);
      else
        ++n_gone_;
    }
  }

  const std::vector<RunExtent>& runs() const { return runs_; }
  int64_t n_gone() const { return n_gone_; }      // runs of which nothing is held
  int64_t n_sealed() const { return n_sealed_; }  // blocks, from the oldest
  int64_t n_unseen() const { return n_unseen_; }

  // PackedShapeOf, with what the heads of the layer share given.
  PackedShape ShapeOf(const BlockShape& head, int layer_rank_v, const RunExtent& run) const {
    return {.format = layout_.seal->format,
            .rank_k = head.rank_k,
            .rank_v = head.rank_v,
            .n_kv_heads = layout_.n_kv_heads,
            .layer_rank_v = layer_rank_v,
            .n_blocks = static_cast<int>(run.n_blocks),
            .is_prompt = run.is_prompt};
  }

  int LayerRankV(int layer_idx) const {
    int64_t sum = 0;
    for (int g = 0; g < layout_.n_kv_heads; ++g) sum += layout_.shape(layer_idx, g).rank_v;
    return static_cast<int>(std::min<int64_t>(sum, std::numeric_limits<int>::max()));
  }

 private:
  const CacheLayout& layout_;
  int64_t n_unseen_;
  int64_t n_sealed_ = 0, n_gone_ = 0;
  std::vector<RunExtent> runs_;
};

// Sink rows, blocks and records of every head, in bytes; -1 when that is more than n_max.
int64_t RowBytes(const CacheLayout& layout, int n_tokens, int64_t n_prompt, int64_t n_max) {
  if (n_tokens == 0) return 0;
  // Runs are listed one by one: not more of them than the file has bytes.
  if (layout.seal.has_value() && n_tokens / kBlockSize > n_max) return -1;
  const HeldRuns held(layout, n_tokens, n_prompt);
  const int64_t n_plain = BlocksFor(layout, n_tokens) - std::max(held.n_sealed(), held.n_unseen());
  int64_t n_bytes = 0;
  for (size_t i = 0; i < layout.shapes.size(); ++i) {
    const BlockShape& head = layout.shapes[i];
    const bool is_first = i % layout.n_kv_heads == 0;
    n_bytes += SinkBytes(layout, head) + n_plain * BlockObjectBytes(head);
    const int layer_rank_v =
        is_first ? held.LayerRankV(static_cast<int>(i / layout.n_kv_heads)) : 0;
    for (const RunExtent& run : held.runs()) {
      const PackedShape shape = held.ShapeOf(head, layer_rank_v, run);
      const int64_t n_blocks =
          run.first_block + run.n_blocks - std::max(run.first_block, held.n_unseen());
      n_bytes += n_blocks * PackedBlockObjectBytes(shape) + RunRecordObjectBytes(shape);
      if (is_first) n_bytes += LayerRecordObjectBytes(shape);
      if (n_bytes > n_max) return -1;
    }
    if (n_bytes > n_max) return -1;
  }
  return n_bytes;
}

// A block of which n_filled entries are written, the others made zero.
void ClearUnfilled(const BlockShape& shape, int n_filled, std::byte* block) {
  const int64_t element_bytes = SizeOf(shape.row_type);
  const auto clear = [&](std::byte* base, int64_t offset) {
    std::memset(base + offset * element_bytes, 0, static_cast<size_t>(element_bytes));
  };
  for (int token = n_filled; token < kBlockSize; ++token) {
    for (int r = 0; r < shape.rank_k; ++r) clear(block, KeyOffset(token, r));
    for (int r = 0; r < shape.rank_v; ++r) {
      clear(block + KeyBytes(shape), ValueOffset(shape, token, r));
    }
  }
  const int64_t n_bytes = BlockBytes(shape);
  std::memset(block + n_bytes, 0, static_cast<size_t>(BlockObjectBytes(shape) - n_bytes));
}

// Writes to the file and keeps the checksum of what it wrote.
class CheckedWriter {
 public:
  explicit CheckedWriter(AtomicFile* file) : file_(file) {}
  Status Write(std::span<const std::byte> bytes) {
    crc_ = ExtendCrc32c(crc_, bytes);
    return file_->Write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  Status WriteCrc() { return file_->Write(&crc_, kCrcBytes); }

 private:
  AtomicFile* file_;
  uint32_t crc_ = 0;
};

// K [n_sink, head_dim] and V [n_sink, rank_v] of the positions there are.
std::vector<std::byte> SinkRows(const SequenceCache& cache, const CacheLayout& layout,
                                int layer_idx, int kv_head_idx) {
  const BlockShape& shape = layout.shape(layer_idx, kv_head_idx);
  std::vector<std::byte> rows(static_cast<size_t>(SinkBytes(layout, shape)));
  if (rows.empty()) return rows;
  const std::byte* sink_k = cache.sink_k(layer_idx, kv_head_idx);
  const std::byte* sink_v = cache.sink_v(layer_idx, kv_head_idx);
  const int64_t n_filled = std::min(cache.n_tokens(), layout.n_sink);
  const int64_t element_bytes = SizeOf(shape.row_type);
  std::memcpy(rows.data(), sink_k, static_cast<size_t>(n_filled * layout.head_dim * element_bytes));
  std::memcpy(rows.data() + (sink_v - sink_k), sink_v,
              static_cast<size_t>(n_filled * shape.rank_v * element_bytes));
  return rows;
}

// n_bytes of an object of object_bytes, the rest zero.
Status WriteObject(const std::byte* object, int64_t n_bytes, int64_t object_bytes,
                   CheckedWriter* writer) {
  if (object_bytes == 0) return OkStatus();
  KVL_RETURN_IF_ERROR(writer->Write({object, static_cast<size_t>(n_bytes)}));
  const std::byte zeros[kObjectAlignment] = {};
  return writer->Write({zeros, static_cast<size_t>(object_bytes - n_bytes)});
}

Status WriteRecords(const SequenceCache& cache, const CacheLayout& layout, const HeldRuns& held,
                    int layer_idx, int kv_head_idx, CheckedWriter* writer) {
  const auto runs = cache.runs(layer_idx, kv_head_idx).subspan(held.n_gone());
  for (size_t r = 0; r < runs.size(); ++r) {
    const PackedShape shape = PackedShapeOf(layout, layer_idx, kv_head_idx, held.runs()[r]);
    KVL_RETURN_IF_ERROR(
        WriteObject(runs[r].record, RunRecordBytes(shape), RunRecordObjectBytes(shape), writer));
    if (kv_head_idx > 0) continue;
    KVL_RETURN_IF_ERROR(WriteObject(runs[r].layer_record, LayerRecordBytes(shape),
                                    LayerRecordObjectBytes(shape), writer));
  }
  return OkStatus();
}

Status WriteHead(const SequenceCache& cache, const CacheLayout& layout, const HeldRuns& held,
                 int layer_idx, int kv_head_idx, CheckedWriter* writer) {
  const BlockShape& shape = layout.shape(layer_idx, kv_head_idx);
  KVL_RETURN_IF_ERROR(writer->Write(SinkRows(cache, layout, layer_idx, kv_head_idx)));
  const auto blocks = cache.blocks(layer_idx, kv_head_idx);
  for (const RunExtent& run : held.runs()) {
    const PackedShape packed = PackedShapeOf(layout, layer_idx, kv_head_idx, run);
    for (int64_t b = std::max(run.first_block, held.n_unseen()); b < run.first_block + run.n_blocks;
         ++b) {
      KVL_RETURN_IF_ERROR(
          WriteObject(blocks[b], PackedBlockBytes(packed), PackedBlockObjectBytes(packed), writer));
    }
  }
  std::vector<std::byte> copy(static_cast<size_t>(BlockObjectBytes(shape)));
  const int64_t first_plain = std::max(held.n_sealed(), held.n_unseen());
  int64_t n_left =
      std::max<int64_t>(0, cache.n_tokens() - layout.n_sink - first_plain * kBlockSize);
  for (const std::byte* block : blocks.subspan(static_cast<size_t>(first_plain))) {
    std::memcpy(copy.data(), block, static_cast<size_t>(BlockBytes(shape)));
    ClearUnfilled(shape, static_cast<int>(std::min<int64_t>(n_left, kBlockSize)), copy.data());
    KVL_RETURN_IF_ERROR(writer->Write(copy));
    n_left = std::max<int64_t>(0, n_left - kBlockSize);
  }
  return WriteRecords(cache, layout, held, layer_idx, kv_head_idx, writer);
}

// Everything before the rows.
std::string Head(const CacheLayout& layout, const SequenceIdentity& identity, int n_tokens,
                 int64_t n_prompt, std::string_view state) {
  std::string rest;
  AppendText(identity.spec, &rest);
  AppendText(identity.model, &rest);
  for (const int number : {layout.n_layers, layout.n_kv_heads, layout.head_dim, layout.n_sink,
                           layout.window, kBlockSize, n_tokens}) {
    AppendBytes(static_cast<uint32_t>(number), &rest);
  }
  AppendBytes(n_prompt, &rest);
  for (const BlockShape& shape : layout.shapes) {
    AppendBytes(static_cast<uint32_t>(shape.rank_k), &rest);
    AppendBytes(static_cast<uint32_t>(shape.rank_v), &rest);
    const auto type = std::find(std::begin(kRowTypes), std::end(kRowTypes), shape.row_type);
    AppendBytes(static_cast<uint32_t>(type - kRowTypes), &rest);
  }
  AppendBytes(static_cast<uint64_t>(state.size()), &rest);
  rest += state;
  std::string head(kMagic);
  AppendBytes(kVersion, &head);
  const int64_t row_bytes =
      RowBytes(layout, n_tokens, n_prompt, std::numeric_limits<int64_t>::max());
  AppendBytes(static_cast<uint64_t>(head.size() + sizeof(uint64_t) + rest.size()) +
                  static_cast<uint64_t>(row_bytes + kCrcBytes),
              &head);
  return head + rest;
}

Status CheckPlace(const SequenceFile& file, const SequencePlace& place, const std::string& path) {
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
      saved.window != layout.window || saved.shapes != layout.shapes || saved.seal != layout.seal) {
    return Error(StatusCode::kDataLoss,
                 "{}: its rows have another shape than those of this model; load it with the "
                 "--dtype and --basis that it was saved with",
                 path);
  }
  if (file.n_tokens > place.max_tokens) {
    return Error(StatusCode::kInvalidArgument, "{}: holds {} positions, but the context is {}",
                 path, file.n_tokens, place.max_tokens);
  }
  return OkStatus();
}

// In steps, so that a window is never exceeded by more than a block, and the last of one position:
// then the blocks of the file are the ones that are held. Runs get their objects.
Status ExtendTo(const SequenceFile& file, SequenceCache* cache) {
  cache->set_n_prompt(file.n_prompt);
  while (cache->n_tokens() < file.n_tokens) {
    const int64_t n_left = file.n_tokens - cache->n_tokens();
    const int64_t n = n_left == 1 ? 1 : std::min<int64_t>(kBlockSize, n_left - 1);
    KVL_RETURN_IF_ERROR(cache->Extend(static_cast<int>(std::min(n, cache->max_step()))));
    for (int l = 0; cache->must_seal() && l < file.layout.n_layers; ++l) {
      KVL_ASSIGN_OR_RETURN(const SequenceCache::RunObjects objects, cache->TakeRunObjects(l));
      cache->PlaceRun(l, objects);
    }
  }
  return OkStatus();
}

// Reads the rows of a file into a cache that has been extended for them.
class RowCopier {
 public:
  RowCopier(const SequenceFile& file, SequenceCache* cache)
      : layout_(file.layout),
        held_(file.layout, file.n_tokens, file.n_prompt),
        rows_(file.rows),
        cache_(cache) {}

  // False when a record would send its reader out of its block.
  bool Copy() {
    for (int layer_idx = 0; layer_idx < layout_.n_layers; ++layer_idx) {
      for (int kv_head_idx = 0; kv_head_idx < layout_.n_kv_heads; ++kv_head_idx) {
        CopyBlocks(layer_idx, kv_head_idx);
        if (!CopyRecords(layer_idx, kv_head_idx)) return false;
      }
    }
    KVL_CHECK(rows_.empty());
    return true;
  }

 private:
  void Take(std::byte* to, int64_t n_bytes) {
    if (n_bytes == 0) return;
    std::memcpy(to, rows_.data(), static_cast<size_t>(n_bytes));
    rows_ = rows_.subspan(static_cast<size_t>(n_bytes));
  }

  void CopyBlocks(int layer_idx, int kv_head_idx) {
    const BlockShape& shape = layout_.shape(layer_idx, kv_head_idx);
    std::byte* sink = cache_->sink_k(layer_idx, kv_head_idx);
    if (sink != nullptr) Take(sink, SinkBytes(layout_, shape));
    const auto blocks = cache_->blocks(layer_idx, kv_head_idx);
    for (const RunExtent& run : held_.runs()) {
      const PackedShape packed = PackedShapeOf(layout_, layer_idx, kv_head_idx, run);
      for (int64_t b = std::max(run.first_block, held_.n_unseen());
           b < run.first_block + run.n_blocks; ++b) {
        Take(blocks[b], PackedBlockObjectBytes(packed));
      }
    }
    const int64_t first_plain = std::max(held_.n_sealed(), held_.n_unseen());
    for (std::byte* block : blocks.subspan(static_cast<size_t>(first_plain))) {
      Take(block, BlockObjectBytes(shape));
    }
  }

  bool CopyRecords(int layer_idx, int kv_head_idx) {
    const auto runs = cache_->runs(layer_idx, kv_head_idx).subspan(held_.n_gone());
    for (size_t r = 0; r < runs.size(); ++r) {
      const PackedShape shape = PackedShapeOf(layout_, layer_idx, kv_head_idx, held_.runs()[r]);
      // The cache's own objects, which nothing reads yet.
      Take(const_cast<std::byte*>(runs[r].record), RunRecordObjectBytes(shape));
      if (!IsSoundRunRecord(shape, runs[r].record)) return false;
      if (kv_head_idx > 0) continue;
      Take(const_cast<std::byte*>(runs[r].layer_record), LayerRecordObjectBytes(shape));
      std::vector<int> ranks_v;
      for (int g = 0; g < layout_.n_kv_heads; ++g) {
        ranks_v.push_back(layout_.shape(layer_idx, g).rank_v);
      }
      if (!IsSoundLayerRecord(shape, ranks_v, runs[r].layer_record)) return false;
    }
    return true;
  }

  const CacheLayout& layout_;
  HeldRuns held_;
  std::span<const std::byte> rows_;
  SequenceCache* cache_;
};

// How the caches of a spec are sealed; nothing where it is not one that this build runs.
std::optional<SealPlan> SealPlanOfText(const std::string& text) {
  const StatusOr<Spec> spec = Spec::Parse(text);
  if (!spec.ok() || !CheckSupported(*spec).ok()) return std::nullopt;
  return SealPlanOf(*spec);
}

}  // namespace

StatusOr<SequenceFile> ParseSequenceFile(std::span<const std::byte> bytes, std::string_view name) {
  ByteReader reader(bytes);
  std::string_view magic;
  uint32_t version = 0;
  uint64_t n_bytes = 0;
  if (!reader.ReadBytes(kMagic.size(), &magic) || magic != kMagic) {
    return Error(StatusCode::kDataLoss, "{}: not a saved sequence", name);
  }
  if (reader.Read(&version) && version != kVersion) {
    return Error(StatusCode::kUnimplemented,
                 "{}: a saved sequence of format {}; this build reads format {}", name, version,
                 kVersion);
  }
  if (!reader.Read(&n_bytes) || n_bytes != bytes.size() || n_bytes < kCrcBytes) {
    return Error(StatusCode::kDataLoss, "{}: damaged: {} bytes long, but its header says {}", name,
                 bytes.size(), n_bytes);
  }
  uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + bytes.size() - kCrcBytes, kCrcBytes);
  if (ExtendCrc32c(0, bytes.first(bytes.size() - kCrcBytes)) != crc) {
    return Error(StatusCode::kDataLoss, "{}: damaged: its checksum does not match", name);
  }
  SequenceFile file;
  uint64_t state_bytes = 0;
  if (!ReadText(&reader, &file.identity.spec) || !ReadText(&reader, &file.identity.model) ||
      !ReadLayout(&reader, &file.layout, &file.n_tokens, &file.n_prompt) ||
      !reader.Read(&state_bytes) || !reader.ReadBytes(state_bytes, &file.state)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: its header is not one of a sequence", name);
  }
  file.layout.seal = SealPlanOfText(file.identity.spec);
  const int64_t n_left = std::ssize(reader.rest()) - kCrcBytes;
  if (n_left < 0 || RowBytes(file.layout, file.n_tokens, file.n_prompt, n_left) != n_left) {
    return Error(StatusCode::kDataLoss, "{}: damaged: {} bytes of rows do not hold {} positions",
                 name, n_left, file.n_tokens);
  }
  file.rows = reader.rest().first(static_cast<size_t>(n_left));
  return file;
}

Status SaveSequence(const SequenceCache& cache, const CacheLayout& layout,
                    const SequenceIdentity& identity, std::string_view state,
                    const std::string& path) {
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  CheckedWriter writer(&file);
  const HeldRuns held(layout, cache.n_tokens(), cache.n_prompt());
  const std::string head = Head(layout, identity, cache.n_tokens(), cache.n_prompt(), state);
  KVL_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span(head))));
  for (int layer_idx = 0; cache.n_tokens() > 0 && layer_idx < layout.n_layers; ++layer_idx) {
    for (int kv_head_idx = 0; kv_head_idx < layout.n_kv_heads; ++kv_head_idx) {
      KVL_RETURN_IF_ERROR(WriteHead(cache, layout, held, layer_idx, kv_head_idx, &writer));
    }
  }
  KVL_RETURN_IF_ERROR(writer.WriteCrc());
  return file.Commit();
}

StatusOr<std::string> RestoreSequence(const std::string& path, const SequencePlace& place,
                                      SequenceCache* cache) {
  KVL_CHECK_EQ(cache->n_tokens(), 0);
  KVL_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  KVL_ASSIGN_OR_RETURN(const SequenceFile file, ParseSequenceFile(mapped.bytes(), path));
  KVL_RETURN_IF_ERROR(CheckPlace(file, place, path));
  if (const Status status = ExtendTo(file, cache); !status.ok()) {
    cache->Clear();
    return Error(status.code(), "{}: {}", path, MessageOf(status));
  }
  if (file.n_tokens > 0 && !RowCopier(file, cache).Copy()) {
    cache->Clear();
    return Error(StatusCode::kDataLoss, "{}: damaged: its exact entries lie outside their blocks",
                 path);
  }
  return std::string(file.state);
}

}  // namespace kvlathe

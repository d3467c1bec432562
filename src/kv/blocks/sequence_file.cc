#include "kv/blocks/sequence_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "format/open_entry.h"
#include "io/atomic_file.h"
#include "io/byte_reader.h"
#include "kv/blocks/sequence_rows.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/seal/seal_schedule.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMagic = "KVLSEQ\r\n";
constexpr uint32_t kVersion = 14;
constexpr int64_t kCrcBytes = 4;
// Bounds that keep every product below 2^63.
constexpr uint32_t kMaxTextBytes = 1 << 16;
constexpr uint32_t kMaxDim = 1 << 20;
constexpr uint32_t kMaxInt = std::numeric_limits<int>::max();
// In the place of the window, where layers have windows of their own.
constexpr uint32_t kWindowsFollow = std::numeric_limits<uint32_t>::max();

constexpr DType kRowTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

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

// What a file says of how a head is stored, whatever the codec: numbers that mean nothing to it are
// zero.
struct HeadNumbers {
  BlockShape shape;
  bool codes_open_rows = false;
  HeadBits bits;
  RotatedRanks ranks;

  friend bool operator==(const HeadNumbers&, const HeadNumbers&) = default;
};

std::vector<BitSplit*> SplitsOf(HeadBits* bits, bool has_pressed_runs) {
  std::vector<BitSplit*> splits = {&bits->middle.k, &bits->middle.v, &bits->most.k,
                                   &bits->most.v,   &bits->least.k,  &bits->least.v};
  if (has_pressed_runs) splits.insert(splits.end(), {&bits->pressed.k, &bits->pressed.v});
  return splits;
}

bool ReadHead(ByteReader* reader, bool has_pressed_runs, HeadNumbers* head) {
  uint32_t rank_k = 0, rank_v = 0, row_type = 0, codes_open_rows = 0;
  for (uint32_t* number : {&rank_k, &rank_v, &row_type, &codes_open_rows}) {
    if (!reader->Read(number)) return false;
  }
  if (rank_k > kMaxDim || rank_v > kMaxDim || row_type >= std::size(kRowTypes)) return false;
  if (codes_open_rows > 1) return false;
  head->shape = {static_cast<int>(rank_k), static_cast<int>(rank_v), kRowTypes[row_type]};
  head->codes_open_rows = codes_open_rows == 1;
  for (BitSplit* split : SplitsOf(&head->bits, has_pressed_runs)) {
    for (int& n : split->channels) {
      uint32_t number = 0;
      if (!reader->Read(&number) || number > kMaxDim) return false;
      n = static_cast<int>(number);
    }
  }
  for (int* rank : {&head->ranks.k, &head->ranks.v, &head->shape.sink_rank_v}) {
    uint32_t number = 0;
    if (!reader->Read(&number) || number > kMaxDim) return false;
    *rank = static_cast<int>(number);
  }
  return true;
}

void AppendHead(HeadNumbers head, bool has_pressed_runs, std::string* out) {
  AppendBytes(static_cast<uint32_t>(head.shape.rank_k), out);
  AppendBytes(static_cast<uint32_t>(head.shape.rank_v), out);
  const auto type = std::find(std::begin(kRowTypes), std::end(kRowTypes), head.shape.row_type);
  AppendBytes(static_cast<uint32_t>(type - kRowTypes), out);
  AppendBytes(static_cast<uint32_t>(head.codes_open_rows), out);
  for (const BitSplit* split : SplitsOf(&head.bits, has_pressed_runs)) {
    for (const int n : split->channels) AppendBytes(static_cast<uint32_t>(n), out);
  }
  AppendBytes(static_cast<uint32_t>(head.ranks.k), out);
  AppendBytes(static_cast<uint32_t>(head.ranks.v), out);
  AppendBytes(static_cast<uint32_t>(head.shape.sink_rank_v), out);
}

// What each codec finds in the numbers of a head, and writes to them.
HeadStorage StorageOf(const RowsCodec& /*codec*/, const HeadNumbers& /*head*/) { return {}; }
HeadStorage StorageOf(const UniformCodec& /*codec*/, const HeadNumbers& /*head*/) { return {}; }
HeadStorage StorageOf(const BalancedCodec& /*codec*/, const HeadNumbers& /*head*/) { return {}; }
HeadStorage StorageOf(const CodebookCodec& /*codec*/, const HeadNumbers& /*head*/) { return {}; }
HeadStorage StorageOf(const TableCodec& /*codec*/, const HeadNumbers& /*head*/) { return {}; }
HeadStorage StorageOf(const SphereCodec& /*codec*/, const HeadNumbers& /*head*/) { return {}; }
HeadStorage StorageOf(const SplitBitsCodec& /*codec*/, const HeadNumbers& head) {
  return head.bits;
}
HeadStorage StorageOf(const RotatedCodec& /*codec*/, const HeadNumbers& head) { return head.ranks; }
void WriteStorage(const std::monostate& /*storage*/, HeadNumbers* /*head*/) {}
void WriteStorage(const HeadBits& bits, HeadNumbers* head) { head->bits = bits; }
void WriteStorage(const RotatedRanks& ranks, HeadNumbers* head) { head->ranks = ranks; }

HeadNumbers NumbersOf(const CacheLayout& layout, const BlockShape& shape,
                      const HeadStorage& storage) {
  HeadNumbers head = {.shape = shape, .codes_open_rows = layout.CodesOpenRows()};
  std::visit([&](const auto& of) { WriteStorage(of, &head); }, storage);
  return head;
}

// Adds a head to the layout, whose seal plan is known. False where its numbers are not those of a
// head of this codec.
bool AddHead(const HeadNumbers& head, CacheLayout* layout) {
  const HeadStorage storage =
      std::visit([&](const auto& codec) { return StorageOf(codec, head); }, layout->codec());
  layout->shapes.push_back(head.shape);
  if (storage != HeadStorage()) layout->storages.push_back(storage);
  return NumbersOf(*layout, head.shape, storage) == head;
}

// Of a head whose newest entry may still change: those that are old enough to be sealed.
int64_t OldEntries(const SequenceFile& file, int64_t n_entries) {
  return std::max<int64_t>(0, n_entries - 1 - file.layout.seal->newest);
}

// How many positions always stay, where the model decides which leave: it was taught that, and no
// spec says it.
bool ReadSweepWindow(ByteReader* reader, CacheLayout* layout) {
  constexpr uint32_t kMostWindow = 1 << 16;
  uint32_t window = 0;
  if (!reader->Read(&window) || window < 1 || window > kMostWindow) return false;
  SetSweepWindow(static_cast<int>(window), layout);
  return true;
}

// Positions of which a head must still hold all, of those past the sink.
int64_t UnsettledPositions(const SequenceFile& file) {
  if (!file.layout.SweepsEntries()) return 0;
  const PromptPlace place = {file.layout.n_sink, file.n_prompt};
  return std::max<int64_t>(
      0, file.n_tokens - FirstUnsettled(*file.layout.retention, place, file.n_tokens));
}

// Lengths of every head, where heads count for themselves: between one and all positions past the
// sink, or as many as there must be. Whether a head can have sealed as much is not checked here.
bool ReadLengths(ByteReader* reader, SequenceFile* file) {
  const int n_seen = std::max(0, file->n_tokens - file->layout.n_sink);
  const int every = file->layout.MergesEntries() ? file->layout.retention->merge->every : 0;
  const int64_t n_unsettled = UnsettledPositions(*file);
  for (size_t i = 0; i < file->layout.shapes.size(); ++i) {
    uint32_t n_entries = 0, n_prompt_blocks = 0, n_sealed_blocks = 0;
    if (!reader->Read(&n_entries) || n_entries > static_cast<uint32_t>(n_seen) ||
        (n_entries == 0) != (n_seen == 0) || n_entries < n_unsettled ||
        (every > 0 && n_entries != PooledEntries(n_seen, every))) {
      return false;
    }
    if (file->layout.HasRunsOfHeads()) {
      if (!reader->Read(&n_prompt_blocks) || !reader->Read(&n_sealed_blocks) ||
          n_prompt_blocks > n_sealed_blocks ||
          n_sealed_blocks > OldEntries(*file, n_entries) / kBlockSize ||
          n_sealed_blocks > (n_entries - n_unsettled) / kBlockSize ||
          (n_sealed_blocks - n_prompt_blocks) % (file->layout.seal->buffer / kBlockSize) != 0) {
        return false;
      }
    }
    file->merged.push_back({static_cast<int>(n_entries), static_cast<int>(n_prompt_blocks),
                            static_cast<int>(n_sealed_blocks)});
  }
  return true;
}

// The places of pressed runs. Whether there are runs there is checked with the bytes of the rows.
bool ReadPressedRuns(ByteReader* reader, std::vector<int>* places) {
  uint32_t n_places = 0;
  if (!reader->Read(&n_places)) return false;
  for (uint32_t i = 0; i < n_places; ++i) {
    uint32_t place = 0;
    if (!reader->Read(&place) || place > kMaxInt) return false;
    if (i > 0 && static_cast<int>(place) <= places->back()) return false;
    places->push_back(static_cast<int>(place));
  }
  return true;
}

void AppendWindows(const CacheLayout& layout, std::string* out) {
  if (layout.HasOneWindow()) return;
  for (const int window : layout.windows) AppendBytes(static_cast<uint32_t>(window), out);
}

// Behind the numbers, of which `window` is one; n_layers is known.
bool ReadWindows(ByteReader* reader, uint32_t window, CacheLayout* layout) {
  for (int l = 0; window != 0 && l < layout->n_layers; ++l) {
    uint32_t of_layer = window;
    if (window == kWindowsFollow && !reader->Read(&of_layer)) return false;
    if (of_layer > kMaxInt) return false;
    layout->windows.push_back(static_cast<int>(of_layer));
  }
  return window != kWindowsFollow || !layout->HasOneWindow();
}

// The numbers behind the texts. Memory for the shapes is taken only as far as the file has them.
bool ReadLayout(ByteReader* reader, SequenceFile* file) {
  CacheLayout* layout = &file->layout;
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0, n_sink = 0;
  uint32_t window = 0, block_size = 0, tokens = 0;
  for (uint32_t* number :
       {&n_layers, &n_kv_heads, &head_dim, &n_sink, &window, &block_size, &tokens}) {
    if (!reader->Read(number)) return false;
  }
  for (int64_t* number : {&file->n_prompt, &file->n_generated}) {
    if (!reader->Read(number) || *number < 0) return false;
  }
  if (std::max({n_layers, n_kv_heads, head_dim, n_sink}) > kMaxDim || block_size != kBlockSize ||
      tokens > kMaxInt) {
    return false;
  }
  layout->n_layers = static_cast<int>(n_layers);
  layout->n_kv_heads = static_cast<int>(n_kv_heads);
  layout->head_dim = static_cast<int>(head_dim);
  layout->n_sink = static_cast<int>(n_sink);
  file->n_tokens = static_cast<int>(tokens);
  if (!ReadWindows(reader, window, layout)) return false;
  if (layout->SweepsEntries() && !ReadSweepWindow(reader, layout)) return false;
  CapNewest(layout);
  for (uint64_t i = 0; i < uint64_t{n_layers} * n_kv_heads; ++i) {
    HeadNumbers head;
    if (!ReadHead(reader, layout->HasPressedRuns(), &head)) return false;
    head.shape.has_one_side = FactsOf(layout->codec()).has_one_side;
    if (head.shape.has_one_side && head.shape.rank_k != head.shape.rank_v) return false;
    if (!AddHead(head, layout)) return false;
    const BlockShape& shape = head.shape;
    // Codes share their scales by groups of channels.
    if (layout->seal.has_value() && std::min(shape.rank_k, shape.rank_v) == 0) return false;
    if (layout->ReadsWholeKeys() && shape.rank_k > layout->head_dim) return false;
  }
  if (layout->HasPressedRuns() && !ReadPressedRuns(reader, &file->pressed_runs)) return false;
  return !layout->CountsByHead() || ReadLengths(reader, file);
}

// The numbers of a layout, in two parts.
void AppendDimensions(const CacheLayout& layout, std::string* out) {
  const uint32_t window =
      layout.HasOneWindow() ? static_cast<uint32_t>(layout.window(0)) : kWindowsFollow;
  for (const int number : {layout.n_layers, layout.n_kv_heads, layout.head_dim, layout.n_sink}) {
    AppendBytes(static_cast<uint32_t>(number), out);
  }
  AppendBytes(window, out);
  AppendBytes(uint32_t{kBlockSize}, out);
}
void AppendHeads(const CacheLayout& layout, std::string* out) {
  AppendWindows(layout, out);
  if (layout.SweepsEntries()) {
    AppendBytes(static_cast<uint32_t>(layout.retention->sweep->window), out);
  }
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      AppendHead(NumbersOf(layout, layout.shape(l, g), layout.storage(l, g)),
                 layout.HasPressedRuns(), out);
    }
  }
}

// What a file says of a cache beside its layout.
struct SavedFacts {
  PrefixPlace place;
  std::vector<int> pressed;          // SequenceCache::pressed_runs
  std::vector<MergedLength> merged;  // as SequenceFile has them
};

// Everything before the rows, of a file of n_bytes.
std::string Head(const SequenceIdentity& identity, const CacheLayout& layout,
                 const SavedFacts& facts, std::string_view state, int64_t* n_bytes) {
  const auto& [place, pressed, merged] = facts;
  std::string rest;
  AppendText(identity.spec, &rest);
  AppendText(identity.model, &rest);
  AppendDimensions(layout, &rest);
  AppendBytes(static_cast<uint32_t>(place.n_tokens), &rest);
  AppendBytes(place.n_prompt, &rest);
  AppendBytes(place.n_generated, &rest);
  AppendHeads(layout, &rest);
  if (layout.HasPressedRuns()) AppendBytes(static_cast<uint32_t>(pressed.size()), &rest);
  for (const int run : pressed) AppendBytes(static_cast<uint32_t>(run), &rest);
  for (const MergedLength& length : merged) {
    AppendBytes(static_cast<uint32_t>(length.n_entries), &rest);
    if (!layout.HasRunsOfHeads()) continue;
    AppendBytes(static_cast<uint32_t>(length.n_prompt_blocks), &rest);
    AppendBytes(static_cast<uint32_t>(length.n_sealed_blocks), &rest);
  }
  AppendBytes(static_cast<uint64_t>(state.size()), &rest);
  rest += state;
  std::string head(kMagic);
  AppendBytes(kVersion, &head);
  const int64_t row_bytes = RowBytes(layout, {place.n_tokens, place.n_prompt, merged, pressed},
                                     std::numeric_limits<int64_t>::max());
  *n_bytes =
      static_cast<int64_t>(head.size() + sizeof(uint64_t) + rest.size()) + row_bytes + kCrcBytes;
  AppendBytes(static_cast<uint64_t>(*n_bytes), &head);
  return head + rest;
}

std::string Head(const SequenceIdentity& identity, const SequenceCache& cache,
                 std::string_view state, int64_t* n_bytes) {
  const PrefixPlace place = {cache.n_tokens(), cache.n_prompt(), cache.n_generated()};
  return Head(identity, cache.layout(),
              {place, cache.pressed_runs(), MergedLengths(cache, cache.layout())}, state, n_bytes);
}

// What the caller keeps, behind what other machines hold of the cache where there are some: how
// many parts in 4 bytes, each with its length in 8.
std::string WithParts(const SequenceCache& cache, const SequenceIdentity& identity,
                      std::string_view state) {
  if (cache.journal() == nullptr) return std::string(state);
  // Machines that do not answer are found by the next step; such a file restores nothing.
  const StatusOr<std::vector<std::string>> parts =
      cache.journal()->SaveParts(cache.number(), identity);
  std::string all;
  AppendBytes(static_cast<uint32_t>(parts.ok() ? parts->size() : 0), &all);
  for (size_t i = 0; parts.ok() && i < parts->size(); ++i) {
    AppendBytes(static_cast<uint64_t>((*parts)[i].size()), &all);
    all += (*parts)[i];
  }
  return all + std::string(state);
}

// How the caches of a spec are sealed and pruned; not at all where it is not one that this build
// runs.
void ReadPlans(const std::string& spec_text, CacheLayout* layout) {
  const StatusOr<Spec> spec = Spec::Parse(spec_text);
  if (!spec.ok() || !CheckSupported(*spec).ok()) return;
  layout->seal = SealPlanOf(*spec);
  layout->retention = RetentionPlanOf(*spec);
  layout->keys = spec->keys();
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
  const bool is_sound =
      ReadText(&reader, &file.identity.spec) && ReadText(&reader, &file.identity.model);
  if (is_sound) ReadPlans(file.identity.spec, &file.layout);
  if (!is_sound || !ReadLayout(&reader, &file) || !reader.Read(&state_bytes) ||
      !reader.ReadBytes(state_bytes, &file.state)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: its header is not one of a sequence", name);
  }
  const int64_t n_left = std::ssize(reader.rest()) - kCrcBytes;
  const SavedLengths lengths = {file.n_tokens, file.n_prompt, file.merged, file.pressed_runs};
  if (n_left < 0 || RowBytes(file.layout, lengths, n_left) != n_left) {
    return Error(StatusCode::kDataLoss, "{}: damaged: {} bytes of rows do not hold {} positions",
                 name, n_left, file.n_tokens);
  }
  file.rows = reader.rest().first(static_cast<size_t>(n_left));
  return file;
}

std::string HeadOfPrefix(const SequenceIdentity& identity, const CacheLayout& layout,
                         const PrefixPlace& place, int64_t* n_bytes) {
  KVL_CHECK(SharesPrefixes(layout));
  return Head(identity, layout, {.place = place}, {}, n_bytes);
}

SequencePieces::SequencePieces(const SequenceCache* cache, const SequenceIdentity& identity,
                               std::string_view state)
    : cache_(cache),
      head_(Head(identity, *cache, WithParts(*cache, identity, state), &n_bytes_)),
      n_layers_(cache->n_tokens() > 0 ? cache->layout().n_layers : 0) {}

std::string SequencePieces::Next() {
  KVL_CHECK(!is_at_end());
  std::string piece;
  if (next_ == 0) {
    piece = std::move(head_);
  } else if (next_ <= n_layers_) {
    AppendRows(*cache_, next_ - 1, &piece);
  } else {
    AppendBytes(crc_, &piece);
  }
  ++next_;
  crc_ = ExtendCrc32c(crc_, std::as_bytes(std::span(piece)));
  return piece;
}

Status SaveSequence(const SequenceCache& cache, const SequenceIdentity& identity,
                    std::string_view state, const std::string& path) {
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  SequencePieces pieces(&cache, identity, state);
  while (!pieces.is_at_end()) {
    const std::string piece = pieces.Next();
    KVL_RETURN_IF_ERROR(file.Write(piece.data(), std::ssize(piece)));
  }
  return file.Commit();
}

std::string PlaceText(const SequenceIdentity& identity, const CacheLayout& layout) {
  std::string text;
  AppendBytes(kVersion, &text);
  AppendText(identity.spec, &text);
  AppendText(identity.model, &text);
  AppendDimensions(layout, &text);
  AppendHeads(layout, &text);
  return text;
}

}  // namespace kvlathe

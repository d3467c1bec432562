// Hostile bytes as sealed runs and an open one: whatever passes for sound must be attended to
// without reading or writing outside the objects.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu/kernels/attend/attend.h"

namespace {

using namespace kvlathe;

// Takes numbers and bytes from the input; zeros when it has ended.
class Input {
 public:
  Input(const uint8_t* data, size_t n_bytes) : data_(data), n_left_(n_bytes) {}
  int Below(int n) {
    if (n_left_ == 0) return 0;
    --n_left_;
    return *data_++ % n;
  }
  std::vector<std::byte> Bytes(int64_t n_bytes) {
    std::vector<std::byte> bytes(static_cast<size_t>(n_bytes));
    const size_t n = std::min(n_left_, bytes.size());
    std::copy_n(reinterpret_cast<const std::byte*>(data_), n, bytes.begin());
    data_ += n;
    n_left_ -= n;
    return bytes;
  }

 private:
  const uint8_t* data_;
  size_t n_left_;
};

enum class Kind { kUniform, kSplit, kCodebooks };

// What an input chooses before its bytes fill the objects.
struct Choices {
  explicit Choices(Input& input) : kind(Kind(input.Below(3))) {
    const int low = input.Below(256), flags = low | input.Below(256) << 8;
    auto take = [&, shift = 0](int n_bits) mutable {
      shift += n_bits;
      return flags >> (shift - n_bits) & ((1 << n_bits) - 1);
    };
    is_decoded = take(1) == 1;
    is_unrepaired = take(1) == 1;
    has_second_run = take(1) == 1;
    has_other_head = take(1) == 1;
    has_coded_rows = take(1) == 1;
    before_rope = take(1) == 1;
    is_deterministic = take(1) == 1;
    n_tokens = take(1) == 1 ? 17 : 1;
    decode_rank = take(2);
    mends_lists = take(1) == 1;
  }

  Kind kind;
  bool is_decoded, is_unrepaired, has_second_run, has_other_head;
  bool has_coded_rows, before_rope, is_deterministic;
  int n_tokens, decode_rank;
  bool mends_lists;  // chance seldom makes sound ones
};

constexpr NamedTable kAnyTable({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 0.5f);
constexpr int kOtherRank = 16;  // of the head before this one

BitSplit DrawSplit(Input& input, int rank) {
  BitSplit split;
  for (int r = 0; r < rank; r += 16) {
    split.channels[input.Below(static_cast<int>(split.channels.size()))] += 16;
  }
  return split;
}

PackedShape DrawShape(const Choices& choices, Input& input) {
  constexpr int kBits[] = {2, 3, 4, 8};
  constexpr int kGroups[] = {0, 16, 32, 64, 128};
  constexpr double kShares[] = {0, 0.02, 0.1, 0.5};
  UniformCodec uniform;
  for (PackedSide* side : {&uniform.k, &uniform.v}) {
    const bool is_key = side == &uniform.k;
    side->bits = kBits[input.Below(4)];
    side->sharing = input.Below(2) == 0 ? ScaleSharing::kToken
                    : is_key            ? ScaleSharing::kChannel
                                        : ScaleSharing::kTokenLayer;
    const bool is_token = side->sharing == ScaleSharing::kToken;
    side->is_symmetric = is_token && (side->bits == 8 || side->bits == 4) && input.Below(2) == 0;
    side->group = side->sharing == ScaleSharing::kTokenLayer ? 0 : kGroups[input.Below(5)];
  }
  PackedFormat format = {.codec = uniform,
                         .prompt_rank = static_cast<int>(input.Below(5)),
                         .decode_rank = choices.decode_rank,
                         .sparse_share = kShares[input.Below(4)]};
  if (choices.kind == Kind::kCodebooks) {
    format.codec = CodebookCodec{std::min(uniform.k.bits, 4), choices.before_rope};
  } else if (choices.kind == Kind::kUniform && uniform.k.is_symmetric && uniform.v.is_symmetric) {
    format.codec = TableCodec{&kAnyTable, std::max(16, uniform.k.group)};
    if (format.prompt_rank == 0 && format.decode_rank == 0 && format.sparse_share == 0) {
      format.codec = SphereCodec{.key_bits = uniform.k.bits == 4 ? 3 : 4,
                                 .value_bits = uniform.v.bits == 4 ? 2 : 4,
                                 .keys_have_signs = uniform.k.group >= 32};
    }
  } else if (choices.kind == Kind::kUniform && uniform.k.group == 128) {
    format = {.codec = BalancedCodec{uniform.k.bits, uniform.v.bits, 64 << input.Below(2)}};
  }
  HeadStorage storage;
  const BlockShape head = {.rank_k = 16 * static_cast<int>(1 + input.Below(5)),
                           .rank_v = 16 * static_cast<int>(1 + input.Below(5))};
  const RunOfLayer run = {.n_kv_heads = choices.has_other_head ? 2 : 1,
                          .layer_rank_v = head.rank_v + (choices.has_other_head ? kOtherRank : 0),
                          .n_blocks = static_cast<int>(1 + input.Below(2)),
                          .is_prompt = !choices.is_decoded,
                          .is_repaired = !choices.is_unrepaired};
  if (choices.kind == Kind::kSplit) {
    const bool is_token = input.Below(2) == 0;
    format.codec = SplitBitsCodec{is_token ? StoredUnit::kToken : StoredUnit::kChannel};
    format.sparse_share = 0;
    EntryBits bits;
    bits.k = DrawSplit(input, head.rank_k);
    bits.v = DrawSplit(input, head.rank_v);
    storage = HeadBits{.middle = bits};
  }
  return MakePackedShape(format, head, storage, run);
}

// Makes lists of exact entries sound with what they say as far as it goes: n_entries that end in
// order, with places below n_places behind their differences.
void MendLists(int64_t n_lists, int64_t n_entries, int n_places, std::byte* ends,
               std::byte* places) {
  if (n_entries == 0) return;
  uint32_t begin = 0;
  for (int64_t i = 0; i < n_lists; ++i) {
    uint32_t end = 0;
    std::memcpy(&end, ends + 4 * i, 4);
    end = std::max(begin, end % static_cast<uint32_t>(n_entries + 1));
    if (i + 1 == n_lists) end = static_cast<uint32_t>(n_entries);
    std::memcpy(ends + 4 * i, &end, 4);
    begin = end;
  }
  for (int64_t i = 0; i < n_entries; ++i) {
    places[i] = static_cast<std::byte>(std::to_integer<int>(places[i]) % n_places);
  }
}

// Makes the counts of n_lanes add up to n_entries, if that many fit: each is what it says or what
// is left, and then the first lanes take the rest.
void MendCounts(int64_t n_entries, int n_lanes, int n_places, std::byte* counts) {
  int64_t n_left = n_entries;
  for (int lane = 0; lane < n_lanes; ++lane) {
    const int64_t count = std::to_integer<int>(counts[lane]) % (n_places + 1);
    counts[lane] = static_cast<std::byte>(std::min(count, n_left));
    n_left -= std::min(count, n_left);
  }
  for (int lane = 0; lane < n_lanes; ++lane) {
    const int64_t count = std::to_integer<int>(counts[lane]);
    const int64_t more = std::min(n_left, n_places - count);
    counts[lane] = static_cast<std::byte>(count + more);
    n_left -= more;
  }
}

// Of list `list`.
int64_t EntriesOf(const std::byte* ends, int64_t list) {
  uint32_t begin = 0, end = 0;
  if (list > 0) std::memcpy(&begin, ends + 4 * (list - 1), 4);
  std::memcpy(&end, ends + 4 * list, 4);
  return int64_t{end} - begin;
}

// What belongs to the model, and so is not hostile.
LayerCodebooks CodebooksFor(const PackedShape& shape) {
  LayerCodebooks books;
  if (!shape.k.has_codebook) return books;
  for (const bool is_key : {true, false}) {
    Codebook& book = is_key ? books.k : books.v;
    book.n_codes = 1 << (is_key ? shape.k : shape.v).bits;
    for (int i = 0; i < book.n_codes; ++i) book.centroids[i] = static_cast<float>(i - 2);
  }
  books.key_scales.assign(shape.n_kv_heads, std::vector<float>(2 * shape.rank_k, 0.5f));
  return books;
}

// Runs of one head whose objects have their exact size, for the sanitizer.
class HostileHead {
 public:
  HostileHead(const Choices& choices, const PackedShape& shape, Input& input)
      : shape_(shape), codebooks_(CodebooksFor(shape)), mends_lists_(choices.mends_lists) {
    AddRun(shape, input);
    if (choices.has_second_run) {
      PackedShape second = shape;
      second.n_blocks = 1;
      second.is_prompt = !shape.is_prompt;
      AddRun(second, input);
    }
    head_ = {.format = shape.format,
             .kv_head_idx = shape.n_kv_heads - 1,
             .n_kv_heads = shape.n_kv_heads,
             .layer_rank_v = shape.layer_rank_v,
             .runs = runs_.data(),
             .n_runs = static_cast<int>(runs_.size())};
    if (choices.kind == Kind::kCodebooks) head_.codebooks = &codebooks_;
    if (const auto* const bits = std::get_if<EntryBits>(&shape.storage); bits != nullptr) {
      head_.storage = HeadBits{.middle = *bits};
    }
    if (choices.kind == Kind::kSplit && choices.has_coded_rows) {
      head_.open = {.first_block = n_blocks(), .n_blocks = 1, .is_open = true};
      AddBlock(kBlockSize * CodedTokenBytes(block_shape(DType::kBf16)), input);
    }
    if (!shape.format.seals_keys_before_rope()) return;
    const int half = shape.rank_k / 2;
    turns_.assign(static_cast<size_t>(n_blocks()) * kBlockSize * half, 0.7f);
    head_.rotation = {.cos = turns_.data(), .sin = turns_.data(), .half = half};
  }
  HostileHead(const HostileHead&) = delete;

  bool is_sound() const { return is_sound_; }
  int n_blocks() const { return static_cast<int>(blocks_.size()); }
  const PackedHead* head() const { return &head_; }
  const std::byte* const* blocks() const { return blocks_.data(); }
  BlockShape block_shape(DType row_type) const { return {shape_.rank_k, shape_.rank_v, row_type}; }

 private:
  std::byte* Keep(std::vector<std::byte> bytes) {
    return objects_.emplace_back(std::move(bytes)).data();
  }
  std::byte* AddBlock(int64_t n_bytes, Input& input) {
    std::byte* const block = Keep(input.Bytes(n_bytes));
    blocks_.push_back(block);
    return block;
  }

  void AddRun(const PackedShape& shape, Input& input) {
    // Records first: they are what a reader follows.
    std::byte* const record = Keep(input.Bytes(RunRecordBytes(shape)));
    std::byte* const layer_record = Keep(input.Bytes(LayerRecordBytes(shape)));
    const int64_t n_value_lists = int64_t{shape.n_blocks} * shape.n_kv_heads;
    if (mends_lists_) {
      MendLists(shape.n_blocks, shape.n_key_entries(), shape.rank_k,
                record + KeySparseEndsOffset(shape), record + KeyPlacesOffset(shape));
      MendLists(n_value_lists, shape.n_value_entries(), kBlockSize,
                layer_record + ValueSparseEndsOffset(shape),
                layer_record + ValuePlacesOffset(shape));
    }
    const bool has_sound_records =
        IsSoundRunRecord(shape, record) && IsSoundLayerRecord(shape, layer_record);
    is_sound_ = is_sound_ && has_sound_records;
    runs_.push_back({.first_block = n_blocks(),
                     .n_blocks = shape.n_blocks,
                     .is_prompt = shape.is_prompt,
                     .is_repaired = shape.is_repaired,
                     .record = record,
                     .layer_record = layer_record});
    const int head_idx = shape.n_kv_heads - 1;
    for (int b = 0; b < shape.n_blocks; ++b) {
      std::byte* const block = AddBlock(PackedBlockBytes(shape), input);
      if (mends_lists_ && shape.n_key_entries() > 0) {
        MendCounts(EntriesOf(record + KeySparseEndsOffset(shape), b), kBlockSize, shape.rank_k,
                   block + KeyCountOffset(shape));
      }
      if (mends_lists_ && shape.n_value_entries() > 0) {
        MendCounts(EntriesOf(layer_record + ValueSparseEndsOffset(shape),
                             int64_t{b} * shape.n_kv_heads + head_idx),
                   shape.rank_v, kBlockSize, block + ValueCountOffset(shape));
      }
      is_sound_ = is_sound_ && HasSoundCounts(shape, head_idx, {record, layer_record}, b, block);
    }
  }

  PackedShape shape_;
  LayerCodebooks codebooks_;
  bool mends_lists_, is_sound_ = true;
  std::vector<std::vector<std::byte>> objects_;
  std::vector<PackedRun> runs_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> turns_;
  PackedHead head_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  Input input(data, n_bytes);
  const Choices choices(input);
  const PackedShape shape = DrawShape(choices, input);
  const int group = 1 + input.Below(5);
  const HostileHead hostile(choices, shape, input);
  if (!hostile.is_sound()) return 0;
  const int n_rows = group * choices.n_tokens, kv_end = hostile.n_blocks() * kBlockSize;
  const std::vector<std::byte> q(static_cast<size_t>(4) * n_rows * shape.rank_k, std::byte{0x3f});
  std::vector<float> o(static_cast<size_t>(n_rows) * shape.rank_v), row_max(n_rows),
      row_sum(n_rows);
  static std::byte* const scratch =
      static_cast<std::byte*>(std::aligned_alloc(64, kAttendScratchBytes));
  for (const Isa isa : AvailableIsas()) {
    for (const DType row_type : {DType::kBf16, DType::kF32}) {
      AttendParams params{.shape = hostile.block_shape(row_type),
                          .gqa_group = group,
                          .n_rows = n_rows,
                          .q = q.data(),
                          .q_stride = shape.rank_k,
                          .blocks = hostile.blocks(),
                          .packed = hostile.head(),
                          .kv_end = kv_end,
                          .first_visible = kv_end - choices.n_tokens + 1,
                          .is_deterministic = choices.is_deterministic,
                          .o = o.data(),
                          .o_stride = shape.rank_v,
                          .row_max = row_max.data(),
                          .row_sum = row_sum.data()};
      GetAttendKernels(isa, row_type).attend(params, scratch);
    }
  }
  return 0;
}

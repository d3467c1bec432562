#include "kv/blocks/sequence_stream.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "io/byte_reader.h"

namespace kvlathe {
namespace {

constexpr std::string_view kStreamMagic = "KVLSTR\r\n";
constexpr uint32_t kStreamVersion = 1;
constexpr int64_t kStreamStartBytes = 36;  // up to the head of the file
constexpr int64_t kPartStartBytes = 8;     // up to the ranges
constexpr int64_t kChecksumBytes = 4;
constexpr int64_t kUnit = 64;  // of ranges
constexpr int64_t kRangeBytes = 8;
static_assert(kUnit == kObjectAlignment);

// Of the head of a file: two texts and numbers of every head.
constexpr uint32_t kMostHeadBytes = 64 << 20;

uint32_t ChecksumOf(std::string_view bytes) {
  return ExtendCrc32c(0, std::as_bytes(std::span(bytes)));
}

// Whether the last four bytes are the checksum of the others.
bool IsChecked(std::string_view bytes) {
  uint32_t crc = 0;
  const size_t n_checked = bytes.size() - kChecksumBytes;
  std::memcpy(&crc, bytes.data() + n_checked, kChecksumBytes);
  return ChecksumOf(bytes.substr(0, n_checked)) == crc;
}

template <typename T>
T NumberAt(std::string_view bytes, int64_t offset) {
  T number;
  std::memcpy(&number, bytes.data() + offset, sizeof(T));
  return number;
}

// Of a part: units that follow each other.
struct UnitRange {
  uint32_t begin = 0;
  uint32_t n = 0;
};

void AddRange(int64_t offset, int64_t n_bytes, std::vector<UnitRange>* ranges) {
  const auto begin = static_cast<uint32_t>(offset / kUnit);
  const auto n = static_cast<uint32_t>(n_bytes / kUnit);
  if (!ranges->empty() && ranges->back().begin + ranges->back().n == begin) {
    ranges->back().n += n;
  } else {
    ranges->push_back({begin, n});
  }
}

}  // namespace

SequenceStreamWriter::SequenceStreamWriter(const SequenceIdentity& identity,
                                           const CacheLayout* layout, const PrefixPlace& place)
    : layout_(layout),
      place_(place),
      file_head_(HeadOfPrefix(identity, *layout, place, &n_file_bytes_)),
      unsent_(PlacesOfRows(*layout, place.n_tokens, place.n_prompt)) {
  n_row_bytes_ = n_file_bytes_ - std::ssize(file_head_) - kChecksumBytes;
}

std::string SequenceStreamWriter::Head() const {
  std::string head(kStreamMagic);
  AppendBytes(kStreamVersion, &head);
  AppendBytes(static_cast<uint32_t>(place_.n_tokens), &head);
  AppendBytes(place_.n_prompt, &head);
  AppendBytes(n_file_bytes_, &head);
  AppendBytes(static_cast<uint32_t>(file_head_.size()), &head);
  head += file_head_;
  AppendBytes(ChecksumOf(head), &head);
  return head;
}

// How many of these objects will not change any more.
int64_t SequenceStreamWriter::CountFinal(const SequenceCache& cache,
                                         const PlacedObjects& placed) const {
  const CacheObjects& objects = placed.objects;
  if (cache.n_tokens() == place_.n_tokens) return objects.n;
  const auto runs = cache.head(placed.layer_idx, placed.kv_head_idx).runs();
  switch (objects.part) {
    case ObjectPart::kSink:
      return cache.n_tokens() >= layout_->n_sink ? objects.n : 0;
    case ObjectPart::kSealedBlock: {
      const int64_t n_sealed = runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
      return objects.first + objects.n <= n_sealed ? objects.n : 0;
    }
    case ObjectPart::kRunRecord:
    case ObjectPart::kLayerRecord:
      return objects.first < std::ssize(runs) ? objects.n : 0;
    case ObjectPart::kPlainBlock: {
      const int64_t n_full = std::max(0, cache.n_tokens() - layout_->n_sink) / kBlockSize;
      return std::clamp<int64_t>(n_full - objects.first, 0, objects.n);
    }
    default:
      return 0;
  }
}

std::string SequenceStreamWriter::Next(const SequenceCache& cache) {
  KVL_CHECK_LE(cache.n_tokens(), place_.n_tokens);
  std::vector<UnitRange> ranges;
  std::string rows;
  for (PlacedObjects& placed : unsent_) {
    CacheObjects& left = placed.objects;
    const int64_t n_room = (kMostPartBytes - std::ssize(rows)) / left.object_bytes;
    const int64_t n = std::min(CountFinal(cache, placed), n_room);
    if (n == 0) continue;
    PlacedObjects taken = placed;
    taken.objects.n = n;
    AppendPlaced(cache, taken, &rows);
    AddRange(placed.offset, n * left.object_bytes, &ranges);
    placed.offset += n * left.object_bytes;
    left.first += n;
    left.n -= n;
  }
  if (ranges.empty()) return {};
  std::erase_if(unsent_, [](const PlacedObjects& placed) { return placed.objects.n == 0; });
  n_rows_sent_ += std::ssize(rows);
  std::string part;
  AppendBytes(static_cast<uint32_t>(ranges.size()), &part);
  AppendBytes(static_cast<uint32_t>(rows.size()), &part);
  AppendArray(std::span<const UnitRange>(ranges), &part);
  part += rows;
  AppendBytes(ChecksumOf(part), &part);
  return part;
}

SequenceStreamReader::SequenceStreamReader(std::string name, SequenceIdentity identity,
                                           const CacheLayout* layout, int n_tokens)
    : name_(std::move(name)),
      identity_(std::move(identity)),
      layout_(layout),
      n_tokens_(n_tokens) {}

// Of what is pending, whose first bytes say how long it is.
StatusOr<int64_t> SequenceStreamReader::NeededBytes() const {
  if (!has_head_) {
    if (std::ssize(pending_) < kStreamStartBytes) return kStreamStartBytes;
    if (!pending_.starts_with(kStreamMagic)) {
      return Error(StatusCode::kDataLoss, "{}: not the stream of a prompt", name_);
    }
    const auto version = NumberAt<uint32_t>(pending_, 8);
    if (version != kStreamVersion) {
      return Error(StatusCode::kUnimplemented,
                   "{}: a stream of format {}; this build reads format {}", name_, version,
                   kStreamVersion);
    }
    const auto n_head = NumberAt<uint32_t>(pending_, 32);
    if (n_head > kMostHeadBytes) {
      return Error(StatusCode::kDataLoss, "{}: damaged: a head of {} bytes", name_, n_head);
    }
    return kStreamStartBytes + n_head + kChecksumBytes;
  }
  if (std::ssize(pending_) < kPartStartBytes) return kPartStartBytes;
  const int64_t n_ranges = NumberAt<uint32_t>(pending_, 0), n = NumberAt<uint32_t>(pending_, 4);
  if (n_ranges < 1 || n > kMostPartBytes || n > n_rows_left_ || n_ranges > n / kUnit) {
    return Error(StatusCode::kDataLoss,
                 "{}: damaged: a part of {} ranges and {} bytes, of {} that are missing", name_,
                 n_ranges, n, n_rows_left_);
  }
  return kPartStartBytes + n_ranges * kRangeBytes + n + kChecksumBytes;
}

Status SequenceStreamReader::TakeHead() {
  if (!IsChecked(pending_)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: the checksum of its head does not match",
                 name_);
  }
  const auto n_tokens = NumberAt<uint32_t>(pending_, 12);
  const auto n_prompt = NumberAt<int64_t>(pending_, 16);
  if (n_tokens != static_cast<uint32_t>(n_tokens_) || n_prompt < 1) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: {} positions of a prompt of {}, and {} were asked for", name_, n_tokens,
                 n_prompt, n_tokens_);
  }
  int64_t n_file_bytes = 0;
  const PrefixPlace place = {.n_tokens = n_tokens_, .n_prompt = n_prompt};
  std::string head = HeadOfPrefix(identity_, *layout_, place, &n_file_bytes);
  const auto sent = std::string_view(pending_).substr(
      kStreamStartBytes, pending_.size() - kStreamStartBytes - kChecksumBytes);
  if (sent != head || NumberAt<int64_t>(pending_, 24) != n_file_bytes) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: the cache of another model, spec, basis or rate than --kv '{}' here", name_,
                 identity_.spec);
  }
  n_head_bytes_ = std::ssize(head);
  n_rows_left_ = n_file_bytes - n_head_bytes_ - kChecksumBytes;
  is_there_.assign(static_cast<size_t>(n_rows_left_ / kUnit), false);
  file_ = std::move(head);
  file_.resize(static_cast<size_t>(n_file_bytes));
  has_head_ = true;
  return OkStatus();
}

Status SequenceStreamReader::TakePart() {
  if (!IsChecked(pending_)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: the checksum of part {} does not match",
                 name_, n_parts_);
  }
  const int64_t n_ranges = NumberAt<uint32_t>(pending_, 0), n = NumberAt<uint32_t>(pending_, 4);
  const auto damaged = [&] {
    return Error(StatusCode::kDataLoss,
                 "{}: damaged: the ranges of part {} are not of rows that are missing", name_,
                 n_parts_);
  };
  int64_t from = kPartStartBytes + n_ranges * kRangeBytes;
  const int64_t end = from + n;
  for (int64_t i = 0; i < n_ranges; ++i) {
    const auto range = NumberAt<UnitRange>(pending_, kPartStartBytes + i * kRangeBytes);
    const int64_t n_bytes = int64_t{range.n} * kUnit;
    if (range.n == 0 || int64_t{range.begin} + range.n > std::ssize(is_there_) ||
        from + n_bytes > end) {
      return damaged();
    }
    const auto first = is_there_.begin() + range.begin;
    if (std::find(first, first + range.n, true) != first + range.n) return damaged();
    std::fill(first, first + range.n, true);
    std::memcpy(file_.data() + n_head_bytes_ + int64_t{range.begin} * kUnit, pending_.data() + from,
                static_cast<size_t>(n_bytes));
    from += n_bytes;
  }
  if (from != end) return damaged();
  n_rows_left_ -= n;
  ++n_parts_;
  return OkStatus();
}

Status SequenceStreamReader::Add(std::string_view bytes) {
  n_received_bytes_ += std::ssize(bytes);
  while (!bytes.empty()) {
    if (is_whole()) {
      return Error(StatusCode::kDataLoss, "{}: damaged: bytes behind its end", name_);
    }
    KVL_ASSIGN_OR_RETURN(int64_t n_needed, NeededBytes());
    const auto n_taken = std::min<size_t>(bytes.size(), n_needed - pending_.size());
    pending_.append(bytes.substr(0, n_taken));
    bytes.remove_prefix(n_taken);
    if (std::ssize(pending_) < n_needed) return OkStatus();
    KVL_ASSIGN_OR_RETURN(n_needed, NeededBytes());  // its first bytes may tell of more
    if (std::ssize(pending_) < n_needed) continue;
    KVL_RETURN_IF_ERROR(has_head_ ? TakePart() : TakeHead());
    pending_.clear();
  }
  return OkStatus();
}

std::string SequenceStreamReader::TakeFile() {
  KVL_CHECK(is_whole());
  const auto checked = std::string_view(file_).substr(0, file_.size() - kChecksumBytes);
  const uint32_t crc = ChecksumOf(checked);
  std::memcpy(file_.data() + checked.size(), &crc, kChecksumBytes);
  return std::move(file_);
}

}  // namespace kvlathe

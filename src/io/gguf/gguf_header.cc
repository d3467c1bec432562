#include "io/gguf/gguf_header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "io/gguf/gguf_cursor.h"
#include "io/gguf/gguf_metadata.h"
#include "io/safetensors/safetensors_header.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kLfsPointer = "version https://git-lfs";
constexpr uint64_t kMostElements = INT64_MAX;
// The fewest bytes of a key (length, name, type, value) and of a tensor (length, name, number of
// dimensions, type, offset): what the counts at the start of the file are bounded with.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

class GgufHeaderReader {
 public:
  GgufHeaderReader(std::span<const std::byte> file, std::string_view path)
      : file_(file), path_(path), cursor_(file, path) {}

  StatusOr<GgufHeader> Read();

 private:
  Status ReadMagic() const;
  Status ReadVersion();
  Status ReadCounts(uint64_t* n_tensors, uint64_t* n_keys);
  Status ReadAlignment();
  Status ReadTensor();
  Status ReadShape(std::string_view name, GgufTensorEntry* entry);
  Status MeasureTensor(std::string_view name, GgufTensorEntry* entry) const;
  Status PlaceTensors();
  Status CheckOverlaps() const;

  std::span<const std::byte> file_;
  std::string_view path_;
  GgufCursor cursor_;
  GgufHeader header_;
};

StatusOr<GgufHeader> GgufHeaderReader::Read() {
  KVL_RETURN_IF_ERROR(ReadMagic());
  KVL_RETURN_IF_ERROR(ReadVersion());
  uint64_t n_tensors = 0, n_keys = 0;
  KVL_RETURN_IF_ERROR(ReadCounts(&n_tensors, &n_keys));
  KVL_RETURN_IF_ERROR(ReadGgufMetadata(n_keys, cursor_, &header_));
  KVL_RETURN_IF_ERROR(ReadAlignment());
  for (uint64_t i = 0; i < n_tensors; ++i) KVL_RETURN_IF_ERROR(ReadTensor());
  KVL_RETURN_IF_ERROR(PlaceTensors());
  KVL_RETURN_IF_ERROR(CheckOverlaps());
  return std::move(header_);
}

Status GgufHeaderReader::ReadMagic() const {
  const std::string_view begin(reinterpret_cast<const char*>(file_.data()),
                               std::min(file_.size(), kLfsPointer.size()));
  if (begin.starts_with(kMagic)) return OkStatus();
  if (begin.empty()) {
    return Error(StatusCode::kDataLoss, "{}: the file is empty; download it again", path_);
  }
  if (begin == kLfsPointer) {
    return Error(StatusCode::kDataLoss,
                 "{}: this is the pointer that Git LFS keeps in place of the file; download the "
                 "file itself",
                 path_);
  }
  return Error(
      StatusCode::kDataLoss,
      "{}: not a GGUF file: it begins with {} instead of 'GGUF'; download it again or name "
      "another file",
      path_, QuoteForMessage(begin.substr(0, kMagic.size())));
}

Status GgufHeaderReader::ReadVersion() {
  std::string_view magic;
  cursor_.ReadBytes(kMagic.size(), &magic);
  if (!cursor_.Read(&header_.version)) return cursor_.Truncated("before the version");
  const uint32_t version = header_.version;
  if (version == 2 || version == 3) return OkStatus();
  if (version == 0) return cursor_.Damaged("version 0 of GGUF does not exist");
  if ((version & 0xffff) == 0) {
    return cursor_.Unread(
        "a big-endian GGUF file; only little-endian ones are read: convert it with "
        "gguf-convert-endian of the Python package gguf");
  }
  return cursor_.Unread("version {} of GGUF; versions 2 and 3 are read: {}", version,
                        version == 1 ? "convert the model again with a present llama.cpp"
                                     : "the file is damaged or newer than this build");
}

// Bounds both by the bytes that are left, so that nothing is reserved for what is not there.
Status GgufHeaderReader::ReadCounts(uint64_t* n_tensors, uint64_t* n_keys) {
  if (!cursor_.Read(n_tensors) || !cursor_.Read(n_keys))
    return cursor_.Truncated("inside the counts");
  if (*n_keys > cursor_.bytes_left() / kMinKeyBytes) {
    return cursor_.Truncated("before {} keys can", *n_keys);
  }
  if (*n_tensors > cursor_.bytes_left() / kMinTensorBytes) {
    return cursor_.Truncated("before {} tensors can", *n_tensors);
  }
  if (*n_tensors > static_cast<uint64_t>(kMaxGgufTensors)) {
    return cursor_.Unread("{} tensors; the most that are read is {}", *n_tensors, kMaxGgufTensors);
  }
  return OkStatus();
}

Status GgufHeaderReader::ReadAlignment() {
  const auto found = header_.metadata.find("general.alignment");
  if (found == header_.metadata.end()) return OkStatus();
  const int64_t* alignment = std::get_if<int64_t>(&found->second);
  if (alignment == nullptr) return cursor_.Damaged("general.alignment is no integer");
  if (*alignment < 1 || *alignment > kMaxGgufAlignment || (*alignment & (*alignment - 1)) != 0) {
    return cursor_.Damaged("general.alignment is {}, but must be a power of two up to {}",
                           *alignment, kMaxGgufAlignment);
  }
  header_.alignment = *alignment;
  return OkStatus();
}

Status GgufHeaderReader::ReadTensor() {
  std::string_view name;
  if (!cursor_.ReadText(&name))
    return cursor_.Truncated("inside the name of tensor {}", header_.tensors.size());
  const auto [at, is_new] = header_.tensors.try_emplace(name);
  if (!is_new) return cursor_.Damaged("tensor {} comes twice", QuoteForMessage(name));
  GgufTensorEntry& entry = at->second;
  KVL_RETURN_IF_ERROR(ReadShape(name, &entry));
  uint64_t offset = 0;
  if (!cursor_.Read(&entry.type) || !cursor_.Read(&offset)) {
    return cursor_.Truncated("inside the description of tensor {}", QuoteForMessage(name));
  }
  KVL_RETURN_IF_ERROR(MeasureTensor(name, &entry));
  if (offset % static_cast<uint64_t>(header_.alignment) != 0) {
    return cursor_.Damaged("tensor {} begins at byte {} of the data, which is no multiple of {}",
                           QuoteForMessage(name), offset, header_.alignment);
  }
  if (offset > file_.size()) {
    return cursor_.Truncated("before byte {} of the data, where tensor {} begins", offset,
                             QuoteForMessage(name));
  }
  entry.begin = static_cast<int64_t>(offset);
  return OkStatus();
}

Status GgufHeaderReader::ReadShape(std::string_view name, GgufTensorEntry* entry) {
  uint32_t n_dims = 0;
  if (!cursor_.Read(&n_dims)) {
    return cursor_.Truncated("inside the shape of tensor {}", QuoteForMessage(name));
  }
  if (n_dims > static_cast<uint32_t>(kMaxGgufDims)) {
    return cursor_.Damaged("tensor {} has {} dimensions, the most is {}", QuoteForMessage(name),
                           n_dims, kMaxGgufDims);
  }
  entry->shape.resize(n_dims);
  for (int64_t& n : entry->shape) {
    uint64_t dim = 0;
    if (!cursor_.Read(&dim)) {
      return cursor_.Truncated("inside the shape of tensor {}", QuoteForMessage(name));
    }
    if (dim == 0 || dim > kMostElements) {
      return cursor_.Damaged("tensor {} has a dimension of {}", QuoteForMessage(name), dim);
    }
    n = static_cast<int64_t>(dim);
  }
  std::ranges::reverse(entry->shape);
  return OkStatus();
}

// Sets n_bytes.
Status GgufHeaderReader::MeasureTensor(std::string_view name, GgufTensorEntry* entry) const {
  const auto too_large = [&] {
    return cursor_.Damaged("tensor {} of shape {} has more bytes than can be counted",
                           QuoteForMessage(name), ShapeToString(entry->shape));
  };
  int64_t n_elements = 1;
  for (const int64_t n : entry->shape) {
    if (__builtin_mul_overflow(n_elements, n, &n_elements)) return too_large();
  }
  const std::optional<GgmlLayout> layout = KnownGgmlLayout(entry->type);
  if (!layout) return OkStatus();
  const int64_t row = entry->shape.empty() ? 1 : entry->shape.back();
  if (row % layout->block_values != 0) {
    return cursor_.Damaged("tensor {} of type {} has rows of {} values, no multiple of {}",
                           QuoteForMessage(name), layout->name, row, layout->block_values);
  }
  if (__builtin_mul_overflow(n_elements / layout->block_values, layout->block_bytes,
                             &entry->n_bytes)) {
    return too_large();
  }
  return OkStatus();
}

// Makes offsets into the data, which begins at the next multiple of the alignment, such into the
// file.
Status GgufHeaderReader::PlaceTensors() {
  if (header_.tensors.empty()) return OkStatus();
  const int64_t file_bytes = cursor_.file_bytes();
  const int64_t header_bytes = cursor_.position();
  const int64_t alignment = header_.alignment;
  const int64_t data_begin = (header_bytes + alignment - 1) / alignment * alignment;
  if (data_begin > file_bytes) return cursor_.Truncated("before the data of the tensors");
  const int64_t data_bytes = file_bytes - data_begin;
  for (auto& [name, entry] : header_.tensors) {
    if (entry.begin > data_bytes || entry.n_bytes > data_bytes - entry.begin) {
      return cursor_.Truncated("before tensor {} does ({} bytes from byte {} of {} bytes of data)",
                               QuoteForMessage(name), entry.n_bytes, entry.begin, data_bytes);
    }
    entry.begin += data_begin;
  }
  return OkStatus();
}

Status GgufHeaderReader::CheckOverlaps() const {
  using Named = std::pair<const std::string_view, GgufTensorEntry>;
  std::vector<const Named*> in_order;
  for (const Named& named : header_.tensors) {
    if (named.second.n_bytes > 0) in_order.push_back(&named);
  }
  std::ranges::sort(in_order, {}, [](const Named* named) { return named->second.begin; });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const auto& [name, entry] = *in_order[i - 1];
    if (entry.begin + entry.n_bytes > in_order[i]->second.begin) {
      return cursor_.Damaged("tensors {} and {} share bytes", QuoteForMessage(name),
                             QuoteForMessage(in_order[i]->first));
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file, std::string_view path) {
  return GgufHeaderReader(file, path).Read();
}

}  // namespace kvlathe

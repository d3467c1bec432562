#include "io/gguf/gguf.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "io/files.h"
#include "io/gguf/gguf_header.h"
#include "io/mapped_file.h"
#include "io/safetensors/safetensors_header.h"

namespace kvlathe {
namespace {

constexpr char kPartNumber[] = "split.no";
constexpr char kPartCount[] = "split.count";
constexpr char kPartTensors[] = "split.tensors.count";  // of all parts together

// By the index of a GgufValue's alternative.
constexpr std::array<std::string_view, std::variant_size_v<GgufValue>> kValueNames = {
    "true or false",        "an integer",          "a floating-point number", "a text",
    "an array of integers", "an array of numbers", "an array of texts"};

// "-00002-of-00003.gguf"; parts count from 0.
std::string PartSuffix(int64_t part, int64_t n_parts) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, n_parts);
}

// The place of a file among the parts of a split model; one of one if it is whole.
struct Part {
  int64_t number = 0;
  int64_t count = 1;
  int64_t n_tensors = -1;  // of all parts together; -1 if the file does not say
};

StatusOr<int64_t> IntegerOf(const std::map<std::string_view, GgufValue>& metadata,
                            std::string_view key, int64_t fallback, std::string_view path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return fallback;
  if (const int64_t* value = std::get_if<int64_t>(&found->second); value != nullptr) return *value;
  return Error(StatusCode::kDataLoss, "{}: key '{}' is {}, but must be an integer", path, key,
               kValueNames[found->second.index()]);
}

StatusOr<Part> PartOf(const GgufHeader& header, std::string_view path) {
  constexpr int64_t kMaxParts = 99'999;  // five digits in the names
  Part part;
  KVL_ASSIGN_OR_RETURN(part.count, IntegerOf(header.metadata, kPartCount, 1, path));
  if (part.count == 0) part.count = 1;
  if (part.count == 1) return part;
  KVL_ASSIGN_OR_RETURN(part.number, IntegerOf(header.metadata, kPartNumber, 0, path));
  KVL_ASSIGN_OR_RETURN(part.n_tensors, IntegerOf(header.metadata, kPartTensors, -1, path));
  if (part.count < 0 || part.count > kMaxParts || part.number < 0 || part.number >= part.count) {
    return Error(StatusCode::kDataLoss,
                 "{}: '{}' is {} and '{}' is {}, which name no part; the file is damaged, download "
                 "it again",
                 path, kPartNumber, part.number, kPartCount, part.count);
  }
  return part;
}

}  // namespace

int64_t GgufTensor::n_elements() const {
  int64_t n_elements = 1;
  for (const int64_t n : shape) n_elements *= n;
  return n_elements;
}

bool LooksLikeGguf(const std::string& path) {
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
  return std::string_view(magic, sizeof(magic)) == "GGUF";
}

struct GgufFile::State {
  struct Unreadable {
    uint32_t type;
    size_t file_idx;

    // "'name' is of type T".
    std::string Describe(std::string_view name) const {
      const std::string type_name = GgmlTypeName(type);
      return fmt::format("{} is of {}{}", QuoteForMessage(name),
                         type_name.starts_with("type ") ? "" : "type ", type_name);
    }
  };

  std::string path;
  std::vector<MappedFile> files;
  std::map<std::string_view, GgufValue> metadata;
  std::map<std::string_view, std::string_view> stored_values;
  std::map<std::string_view, GgufTensor> tensors;
  std::map<std::string_view, Unreadable> unreadable;

  Status AddFirst();
  Status AddParts(const Part& first);
  StatusOr<GgufHeader> AddFile(const std::string& file_path);
  Status AddTensor(std::string_view name, GgufTensorEntry entry);
  // The file that a tensor is in.
  const std::string& PathOf(std::string_view name) const;
  template <typename T>
  StatusOr<const T*> ArrayOf(std::string_view key) const;
  Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const;
};

// Maps a file and adds its tensors.
StatusOr<GgufHeader> GgufFile::State::AddFile(const std::string& file_path) {
  KVL_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(file_path));
  KVL_ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(file.bytes(), file_path));
  files.push_back(std::move(file));
  for (auto& [name, entry] : header.tensors) {
    KVL_RETURN_IF_ERROR(AddTensor(name, std::move(entry)));
  }
  return header;
}

// Adds a tensor of the last file.
Status GgufFile::State::AddTensor(std::string_view name, GgufTensorEntry entry) {
  if (tensors.contains(name) || unreadable.contains(name)) {
    return Error(StatusCode::kDataLoss,
                 "{}: tensor {} is also in {}; the files are not parts of one model, download them "
                 "again",
                 files.back().path(), QuoteForMessage(name), PathOf(name));
  }
  const std::optional<GgmlType> type = GgmlTypeOf(entry.type);
  if (!type) {
    unreadable.emplace(name, Unreadable{entry.type, files.size() - 1});
    return OkStatus();
  }
  tensors.emplace(name, GgufTensor{.name = name,
                                   .type = *type,
                                   .shape = std::move(entry.shape),
                                   .data = files.back().bytes().data() + entry.begin,
                                   .n_bytes = entry.n_bytes});
  return OkStatus();
}

const std::string& GgufFile::State::PathOf(std::string_view name) const {
  if (const auto found = unreadable.find(name); found != unreadable.end()) {
    return files[found->second.file_idx].path();
  }
  const std::byte* data = tensors.at(name).data;
  for (const MappedFile& file : files) {
    if (file.Contains(data)) return file.path();
  }
  return path;
}

Status GgufFile::State::AddFirst() {
  KVL_ASSIGN_OR_RETURN(GgufHeader header, AddFile(path));
  KVL_ASSIGN_OR_RETURN(const Part part, PartOf(header, path));
  metadata = std::move(header.metadata);
  stored_values = std::move(header.stored_values);
  if (part.count == 1) return OkStatus();
  const std::string suffix = PartSuffix(part.number, part.count);
  if (!path.ends_with(suffix)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: part {} of {} of a model, but its name does not end with '{}', by which the "
                 "other parts are found; give all parts their names back",
                 path, part.number + 1, part.count, suffix);
  }
  if (part.number != 0) {
    return Error(StatusCode::kInvalidArgument, "{}: part {} of {} of a model; open the first, {}{}",
                 path, part.number + 1, part.count, path.substr(0, path.size() - suffix.size()),
                 PartSuffix(0, part.count));
  }
  return AddParts(part);
}

// The parts after the first.
Status GgufFile::State::AddParts(const Part& first) {
  const std::string stem = path.substr(0, path.size() - PartSuffix(0, first.count).size());
  for (int64_t i = 1; i < first.count; ++i) {
    const std::string part_path = stem + PartSuffix(i, first.count);
    if (!FileExists(part_path)) {
      return Error(StatusCode::kNotFound,
                   "{}: no such file; it is part {} of {} of the model that begins with {}: "
                   "download it into the same folder",
                   part_path, i + 1, first.count, path);
    }
    KVL_ASSIGN_OR_RETURN(const GgufHeader header, AddFile(part_path));
    KVL_ASSIGN_OR_RETURN(const Part part, PartOf(header, part_path));
    if (part.number != i || part.count != first.count || part.n_tensors != first.n_tensors) {
      return Error(StatusCode::kDataLoss,
                   "{}: says it is part {} of {} with {} tensors in all, but {} expects part {} of "
                   "{} with {}; download all parts again",
                   part_path, part.number + 1, part.count, part.n_tensors, path, i + 1, first.count,
                   first.n_tensors);
    }
  }
  const auto n_tensors = std::ssize(tensors) + std::ssize(unreadable);
  if (first.n_tensors >= 0 && n_tensors != first.n_tensors) {
    return Error(StatusCode::kDataLoss,
                 "{}: the {} parts have {} tensors, but '{}' is {}; download all parts again", path,
                 first.count, n_tensors, kPartTensors, first.n_tensors);
  }
  return OkStatus();
}

StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  KVL_RETURN_IF_ERROR(state->AddFirst());
  return GgufFile(std::move(state));
}

GgufFile::GgufFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

const std::string& GgufFile::path() const { return state_->path; }
std::vector<std::string> GgufFile::FilePaths() const {
  std::vector<std::string> paths;
  for (const MappedFile& file : state_->files) paths.push_back(file.path());
  return paths;
}
const std::map<std::string_view, GgufValue>& GgufFile::metadata() const { return state_->metadata; }
const std::map<std::string_view, std::string_view>& GgufFile::stored_values() const {
  return state_->stored_values;
}
const std::map<std::string_view, GgufTensor>& GgufFile::tensors() const { return state_->tensors; }

std::vector<const GgufTensor*> GgufFile::TensorsInOrder() const {
  std::vector<const GgufTensor*> in_order;
  for (const MappedFile& file : state_->files) {
    const auto begin = std::ssize(in_order);
    for (const auto& [name, tensor] : state_->tensors) {
      if (file.Contains(tensor.data)) in_order.push_back(&tensor);
    }
    std::sort(in_order.begin() + begin, in_order.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->data < b->data; });
  }
  return in_order;
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto found = state_->metadata.find(key);
  return found == state_->metadata.end() ? nullptr : &found->second;
}

Status GgufFile::State::WrongType(std::string_view key, const GgufValue& value,
                                  std::string_view wanted) const {
  return Error(StatusCode::kDataLoss, "{}: key '{}' is {}, but must be {}", path, key,
               kValueNames[value.index()], wanted);
}

StatusOr<std::string> GgufFile::TextOr(std::string_view key, std::string_view fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::string(fallback);
  const auto* text = std::get_if<std::string_view>(value);
  if (text == nullptr) return state_->WrongType(key, *value, "a text");
  return std::string(*text);
}

StatusOr<int64_t> GgufFile::IntegerOr(std::string_view key, int64_t fallback, int64_t min,
                                      int64_t max) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback;
  const auto* number = std::get_if<int64_t>(value);
  if (number == nullptr) return state_->WrongType(key, *value, "an integer");
  if (*number < min || *number > max) {
    return Error(StatusCode::kDataLoss, "{}: key '{}' is {}, but must be from {} to {}", path(),
                 key, *number, min, max);
  }
  return *number;
}

StatusOr<double> GgufFile::NumberOr(std::string_view key, double fallback, double min,
                                    double max) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback;
  double number = 0;
  if (const auto* integer = std::get_if<int64_t>(value); integer != nullptr) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(value); real != nullptr) {
    number = *real;
  } else {
    return state_->WrongType(key, *value, "a number");
  }
  if (number >= min && number <= max) return number;  // false of a NaN
  return Error(StatusCode::kDataLoss, "{}: key '{}' is {}, but must be from {} to {}", path(), key,
               number, min, max);
}

StatusOr<bool> GgufFile::BoolOr(std::string_view key, bool fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback;
  const bool* truth = std::get_if<bool>(value);
  if (truth == nullptr) return state_->WrongType(key, *value, "true or false");
  return *truth;
}

template <typename T>
StatusOr<const T*> GgufFile::State::ArrayOf(std::string_view key) const {
  static const T kEmpty;
  const auto found = metadata.find(key);
  if (found == metadata.end()) return static_cast<const T*>(nullptr);
  if (const T* array = std::get_if<T>(&found->second); array != nullptr) return array;
  const bool is_empty = std::visit(
      [](const auto& value) {
        if constexpr (requires { value.capacity(); }) return value.empty();
        return false;
      },
      found->second);
  if (is_empty) return &kEmpty;
  return WrongType(key, found->second, kValueNames[GgufValue(T()).index()]);
}

StatusOr<const std::vector<std::string_view>*> GgufFile::Texts(std::string_view key) const {
  return state_->ArrayOf<std::vector<std::string_view>>(key);
}
StatusOr<const std::vector<int64_t>*> GgufFile::Integers(std::string_view key) const {
  return state_->ArrayOf<std::vector<int64_t>>(key);
}
StatusOr<const std::vector<double>*> GgufFile::Numbers(std::string_view key) const {
  return state_->ArrayOf<std::vector<double>>(key);
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? nullptr : &found->second;
}

StatusOr<const GgufTensor*> GgufFile::GetTensor(std::string_view name,
                                                const std::vector<int64_t>& shape) const {
  if (const auto found = state_->unreadable.find(name); found != state_->unreadable.end()) {
    return Error(StatusCode::kUnimplemented,
                 "{}: tensor {}, which is not read; take a file of another quantisation",
                 state_->PathOf(name), found->second.Describe(name));
  }
  const GgufTensor* tensor = FindTensor(name);
  if (tensor == nullptr) {
    return Error(StatusCode::kNotFound, "{}: no tensor {}", path(), QuoteForMessage(name));
  }
  if (tensor->shape != shape) {
    return Error(StatusCode::kDataLoss, "{}: tensor {} has shape {}, expected {}",
                 state_->PathOf(name), QuoteForMessage(name), ShapeToString(tensor->shape),
                 ShapeToString(shape));
  }
  return tensor;
}

std::vector<std::string> GgufFile::UnreadableTensors() const {
  std::vector<std::string> lines;
  for (const auto& [name, what] : state_->unreadable) {
    lines.push_back(what.Describe(name));
  }
  return lines;
}

void GgufFile::ReleasePages(const GgufTensor& tensor) const {
  for (const MappedFile& file : state_->files) {
    if (file.Contains(tensor.data)) file.ReleasePages(tensor.data, tensor.n_bytes);
  }
}

void GgufFile::ReleaseAllPages() const {
  for (const MappedFile& file : state_->files) {
    file.ReleasePages(file.bytes().data(), file.n_bytes());
  }
}

}  // namespace kvlathe

#include "io/safetensors/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "io/files.h"
#include "io/mapped_file.h"
#include "io/safetensors/safetensors_header.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";
// Files that may lie beside the model's own: a calibration, and a retrofit with DMS.
constexpr std::string_view kOtherNames[] = {"basis.safetensors", "dms.safetensors"};

// Tensor name -> shard file name.
using WeightMap = std::map<std::string, std::string, std::less<>>;

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

StatusOr<WeightMap> ReadIndex(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonFile(path));
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object()) {
    return Error(StatusCode::kDataLoss, "{}: no object \"weight_map\"", path);
  }
  WeightMap weight_map;
  for (const auto& [name, shard] : found->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return Error(StatusCode::kDataLoss,
                   "{}: tensor {}: its shard must be a file name without folders", path,
                   QuoteForMessage(name));
    }
    weight_map.emplace(name, shard.get<std::string>());
  }
  if (weight_map.empty()) return Error(StatusCode::kDataLoss, "{}: lists no tensors", path);
  return weight_map;
}

// The one file of a model directory without an index.
StatusOr<std::string> FindSingleFile(const std::string& directory) {
  const std::string usual = directory + "/" + kSingleName;
  if (FileExists(usual)) return usual;
  std::set<std::string> candidates;
  std::string other_weights;  // in a form that this reader does not take
  std::error_code error;
  std::filesystem::directory_iterator at(directory, error), end;
  for (; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_other = std::ranges::find(kOtherNames, name) != std::end(kOtherNames);
    if (name.ends_with(".safetensors") && !is_other && FileExists(at->path().string())) {
      candidates.insert(name);
    }
    if (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".pt")) {
      other_weights = name;
    }
  }
  if (error) return Error(StatusCode::kInternal, "{}: cannot list: {}", directory, error.message());
  if (candidates.empty() && !other_weights.empty()) {
    return Error(StatusCode::kNotFound,
                 "{}: the weights are a PyTorch file ({}); convert them to safetensors: in Python, "
                 "transformers.AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, "
                 "safe_serialization=True), with the tokenizer's files beside them",
                 directory, other_weights);
  }
  if (candidates.empty()) {
    return Error(StatusCode::kNotFound,
                 "{}: neither {} nor {} is there; a model's weights must be safetensors", directory,
                 kIndexName, kSingleName);
  }
  if (candidates.size() > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: several *.safetensors ({}, {}, ...) and no {} that says what is in which",
                 directory, *candidates.begin(), *std::next(candidates.begin()), kIndexName);
  }
  return directory + "/" + *candidates.begin();
}

}  // namespace

struct SafetensorsReader::State {
  struct Unsupported {
    std::string dtype_name;
    int file_idx;
  };

  std::string path;
  std::vector<MappedFile> files;
  std::vector<Buffer> realigned;  // copies of tensors that stand at an odd place in their file
  std::map<std::string, TensorView, std::less<>> tensors;
  std::map<std::string, Unsupported, std::less<>> unsupported;
  std::map<std::string, ByteTensorView, std::less<>> bytes;  // those of `unsupported` of dtype U8
  std::map<std::string, int, std::less<>> file_idx_of;       // of `tensors`
  std::map<std::string, std::string, std::less<>> metadata;

  Status AddFile(const std::string& file_path, const WeightMap* weight_map);
  Status AddTensor(const std::string& name, SafetensorsEntry entry);
  Status RequireAll(const WeightMap& weight_map, const std::string& shard) const;
};

// Adds the tensors of one file: all, or those that weight_map expects in it.
Status SafetensorsReader::State::AddFile(const std::string& file_path,
                                         const WeightMap* weight_map) {
  KVL_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(file_path));
  KVL_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(file.bytes(), file_path));
  files.push_back(std::move(file));
  const std::string shard = std::filesystem::path(file_path).filename().string();
  for (auto& [name, entry] : header.entries) {
    if (weight_map != nullptr) {
      const auto found = weight_map->find(name);
      if (found == weight_map->end() || found->second != shard) continue;
    }
    KVL_RETURN_IF_ERROR(AddTensor(name, std::move(entry)));
  }
  metadata.merge(header.metadata);
  return weight_map == nullptr ? OkStatus() : RequireAll(*weight_map, shard);
}

// Adds a tensor of the last file.
Status SafetensorsReader::State::AddTensor(const std::string& name, SafetensorsEntry entry) {
  const int file_idx = static_cast<int>(files.size()) - 1;
  if (!entry.dtype) {
    if (entry.dtype_name == "U8") {
      bytes.emplace(
          name, ByteTensorView{std::move(entry.shape), files.back().bytes().data() + entry.begin,
                               entry.end - entry.begin});
    }
    unsupported.emplace(name, Unsupported{std::move(entry.dtype_name), file_idx});
    return OkStatus();
  }
  TensorView view;
  view.dtype = *entry.dtype;
  view.shape = std::move(entry.shape);
  view.data = files.back().bytes().data() + entry.begin;
  view.n_bytes = entry.end - entry.begin;
  // Files of today's writers are aligned; the format does not promise it.
  if (reinterpret_cast<uintptr_t>(view.data) % SizeOf(view.dtype) != 0 && view.n_bytes > 0) {
    KVL_ASSIGN_OR_RETURN(Buffer copy, Buffer::Allocate(view.n_bytes, "an unaligned tensor"));
    std::memcpy(copy.data(), view.data, static_cast<size_t>(view.n_bytes));
    view.data = copy.data();
    realigned.push_back(std::move(copy));
  }
  tensors.emplace(name, std::move(view));
  file_idx_of.emplace(name, file_idx);
  return OkStatus();
}

Status SafetensorsReader::State::RequireAll(const WeightMap& weight_map,
                                            const std::string& shard) const {
  for (const auto& [name, its_shard] : weight_map) {
    if (its_shard == shard && !tensors.contains(name) && !unsupported.contains(name)) {
      return Error(StatusCode::kDataLoss, "{}: tensor {}: {} says it is here, but it is not",
                   files.back().path(), QuoteForMessage(name), kIndexName);
    }
  }
  return OkStatus();
}

StatusOr<SafetensorsReader> SafetensorsReader::OpenFile(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  KVL_RETURN_IF_ERROR(state->AddFile(path, nullptr));
  return SafetensorsReader(std::move(state));
}

StatusOr<SafetensorsReader> SafetensorsReader::OpenModel(const std::string& directory) {
  if (!DirectoryExists(directory)) {
    return Error(StatusCode::kNotFound, "{}: no such model directory", directory);
  }
  auto state = std::make_unique<State>();
  state->path = directory;
  const std::string index_path = directory + "/" + kIndexName;
  if (!FileExists(index_path)) {
    KVL_ASSIGN_OR_RETURN(const std::string path, FindSingleFile(directory));
    KVL_RETURN_IF_ERROR(state->AddFile(path, nullptr));
    return SafetensorsReader(std::move(state));
  }
  KVL_ASSIGN_OR_RETURN(const WeightMap weight_map, ReadIndex(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  for (const std::string& shard : shards) {
    KVL_RETURN_IF_ERROR(state->AddFile(directory + "/" + shard, &weight_map));
  }
  return SafetensorsReader(std::move(state));
}

SafetensorsReader::SafetensorsReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

const TensorView* SafetensorsReader::Find(std::string_view name) const {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? nullptr : &found->second;
}

StatusOr<const TensorView*> SafetensorsReader::Get(std::string_view name,
                                                   const std::vector<int64_t>& shape) const {
  const TensorView* view = Find(name);
  if (view == nullptr) {
    const auto unsupported = state_->unsupported.find(name);
    if (unsupported == state_->unsupported.end()) {
      return Error(StatusCode::kNotFound, "{}: no tensor {}", state_->path, QuoteForMessage(name));
    }
    return Error(StatusCode::kUnimplemented,
                 "{}: tensor {} has dtype {}; supported: BF16, F16, F32",
                 state_->files[unsupported->second.file_idx].path(), QuoteForMessage(name),
                 unsupported->second.dtype_name);
  }
  if (view->shape != shape) {
    return Error(StatusCode::kDataLoss, "{}: tensor {} has shape {}, expected {}",
                 state_->files[state_->file_idx_of.find(name)->second].path(),
                 QuoteForMessage(name), ShapeToString(view->shape), ShapeToString(shape));
  }
  return view;
}

const std::map<std::string, TensorView, std::less<>>& SafetensorsReader::tensors() const {
  return state_->tensors;
}
const std::map<std::string, std::string, std::less<>>& SafetensorsReader::metadata() const {
  return state_->metadata;
}
const std::string& SafetensorsReader::path() const { return state_->path; }

const ByteTensorView* SafetensorsReader::FindBytes(std::string_view name) const {
  const auto found = state_->bytes.find(name);
  return found == state_->bytes.end() ? nullptr : &found->second;
}

void SafetensorsReader::ReleasePages(const TensorView& tensor) const {
  ReleasePages(tensor.data, tensor.n_bytes);
}

void SafetensorsReader::ReleasePages(const std::byte* data, int64_t n_bytes) const {
  for (const MappedFile& file : state_->files) {
    if (file.Contains(data)) file.ReleasePages(data, n_bytes);
  }
}

}  // namespace kvlathe

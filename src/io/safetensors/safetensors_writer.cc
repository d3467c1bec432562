#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/units.h"
#include "io/atomic_file.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/safetensors_header.h"

namespace kvlathe {
namespace {

using nlohmann::json;

StatusOr<int64_t> BytesOf(const TensorToWrite& tensor, const std::string& path) {
  int64_t n_bytes = SizeOf(tensor.dtype);
  for (const int64_t n : tensor.shape) {
    if (n < 0 || __builtin_mul_overflow(n_bytes, n, &n_bytes)) {
      return Error(StatusCode::kInvalidArgument, "{}: tensor {}: impossible shape {}", path,
                   QuoteForMessage(tensor.name), ShapeToString(tensor.shape));
    }
  }
  if (n_bytes > 0 && tensor.data == nullptr) {
    return Error(StatusCode::kInvalidArgument, "{}: tensor {}: no data", path,
                 QuoteForMessage(tensor.name));
  }
  return n_bytes;
}

// The JSON of the header, by hand because the order of the tensors is the caller's.
StatusOr<std::string> MakeHeader(const std::string& path, const std::vector<TensorToWrite>& tensors,
                                 const std::map<std::string, std::string>& metadata,
                                 std::vector<int64_t>& tensor_bytes) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump();
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return Error(StatusCode::kInvalidArgument, "{}: tensor {}: the name is taken", path,
                   QuoteForMessage(tensor.name));
    }
    KVL_ASSIGN_OR_RETURN(const int64_t n_bytes, BytesOf(tensor, path));
    const json fields = {{"dtype", DTypeName(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {offset, offset + n_bytes}}};
    if (text.size() > 1) text += ',';
    text += json(tensor.name).dump() + ":" + fields.dump();
    tensor_bytes.push_back(n_bytes);
    offset += n_bytes;
  }
  text += '}';
  text.resize(static_cast<size_t>(RoundUp(std::ssize(text), 8)), ' ');
  if (std::ssize(text) > kMaxSafetensorsHeaderBytes ||
      std::ssize(tensors) > kMaxSafetensorsTensors) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: a header of {} bytes for {} tensors is too large", path, text.size(),
                 tensors.size());
  }
  return text;
}

}  // namespace

Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<int64_t> tensor_bytes;
  StatusOr<std::string> header;
  try {
    header = MakeHeader(path, tensors, metadata, tensor_bytes);
  } catch (const json::type_error&) {
    header = Error(StatusCode::kInvalidArgument,
                   "{}: the name of a tensor or a metadata text is not UTF-8", path);
  }
  KVL_RETURN_IF_ERROR(header.status());
  const uint64_t header_bytes = header->size();
  std::string prefix(sizeof(header_bytes), '\0');
  std::memcpy(prefix.data(), &header_bytes, sizeof(header_bytes));
  prefix += *header;

  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  KVL_RETURN_IF_ERROR(file.Write(prefix.data(), std::ssize(prefix)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    KVL_RETURN_IF_ERROR(file.Write(tensors[i].data, tensor_bytes[i]));
  }
  return file.Commit();
}

}  // namespace kvlathe

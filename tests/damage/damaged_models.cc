#include "damage/damaged_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "io/files.h"
#include "io/gguf/gguf_writer.h"
#include "io/safetensors/safetensors.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::testing {
namespace {

const std::string kFolder = KVLATHE_SOURCE_DIR "/tests/golden/";

std::string BytesAt(const std::byte* data, int64_t n_bytes) {
  return std::string(reinterpret_cast<const char*>(data), static_cast<size_t>(n_bytes));
}

CopiedTensors TensorsOfFolder(const std::string& name) {
  std::ifstream file(kFolder + name + "/model.safetensors", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t n_header = 0;
  std::memcpy(&n_header, bytes.data(), sizeof n_header);
  const size_t data = sizeof n_header + n_header;
  const auto header = nlohmann::json::parse(bytes.substr(sizeof n_header, n_header));
  CopiedTensors tensors;
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor == "__metadata__") continue;
    const size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    tensors[tensor] = {entry.at("dtype"), GgmlType::kF32, entry.at("shape"),
                       bytes.substr(data + begin, end - begin)};
  }
  return tensors;
}

}  // namespace

void CopyConfig(const std::string& name, const std::string& path, const nlohmann::json& change) {
  std::filesystem::create_directories(path);
  auto config = ReadJsonFile(kFolder + name + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  config->merge_patch(change);
  std::ofstream(path + "/config.json") << config->dump();
}

void CopyFolder(const std::string& name, const std::string& path,
                const std::function<void(CopiedTensors*)>& edit) {
  CopyConfig(name, path, nlohmann::json::object());
  CopiedTensors tensors = TensorsOfFolder(name);
  edit(&tensors);
  nlohmann::json header;
  std::string data;
  for (const auto& [tensor, copy] : tensors) {
    header[tensor] = {{"dtype", copy.dtype},
                      {"shape", copy.shape},
                      {"data_offsets", {data.size(), data.size() + copy.bytes.size()}}};
    data += copy.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t n_header = text.size();
  std::ofstream(path + "/model.safetensors", std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(&n_header), sizeof n_header) << text
      << data;
}

void CopyGguf(const std::string& name, const std::string& path, const GgufChanges& changes,
              const std::function<void(CopiedTensors*)>& edit) {
  const auto file = GgufFile::Open(kFolder + "gguf/" + name + ".gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  CopiedTensors tensors;
  for (const auto& [tensor_name, tensor] : file->tensors()) {
    tensors[std::string(tensor_name)] = {"", tensor.type, tensor.shape,
                                         BytesAt(tensor.data, tensor.n_bytes)};
  }
  if (edit) edit(&tensors);
  GgufWriter writer;
  writer.CopyMetadata(*file);
  for (const auto& [key, value] : changes) writer.Set(key, value);
  for (const auto& [tensor, copy] : tensors) writer.AddTensor(tensor, copy.type, copy.shape);
  ASSERT_TRUE(writer.Begin(path).ok());
  for (const auto& [tensor, copy] : tensors) {
    ASSERT_TRUE(writer.Append(std::as_bytes(std::span(copy.bytes))).ok());
  }
  ASSERT_TRUE(writer.Commit().ok());
}

Status OpenModel(const std::string& model) {
  KVL_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model));
  std::unique_ptr<TensorSource> source;
  if (model.ends_with(".gguf")) {
    KVL_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(model));
    source = MakeGgufSource(std::make_shared<const GgufFile>(std::move(file)));
  } else {
    KVL_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::OpenModel(model));
    source = MakeFileSource(std::move(reader));
  }
  ThreadPool pool(1);
  return ModelWeights::Load(config, DType::kF32, std::move(source),
                            MakeMachine(&pool, Isa::kScalar))
      .status();
}

void ExpectOneClearError(const Status& status, const std::string& needle) {
  ASSERT_FALSE(status.ok()) << "opens; expected an error with '" << needle << "'";
  EXPECT_TRUE(status.code() == StatusCode::kDataLoss ||
              status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound)
      << status;
  const std::string message = MessageOf(status);
  EXPECT_THAT(message, ::testing::HasSubstr(needle));
  EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; })) << message;
  EXPECT_LT(message.size(), 400) << message;
}

}  // namespace kvlathe::testing

// Damaged copies of the golden models (tests/golden), and what opening one says.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/gguf/gguf.h"

namespace kvlathe::testing {

// A tensor of a copy.
struct CopiedTensor {
  std::string dtype;               // of a folder, as safetensors names it
  GgmlType type = GgmlType::kF32;  // of a GGUF file
  std::vector<int64_t> shape;      // row-major
  std::string bytes;
};
using CopiedTensors = std::map<std::string, CopiedTensor>;

// A folder at `path` with the config.json of tests/golden/NAME as `change` (a JSON merge patch)
// leaves it.
void CopyConfig(const std::string& name, const std::string& path, const nlohmann::json& change);
// And with its tensors as `edit` leaves them.
void CopyFolder(const std::string& name, const std::string& path,
                const std::function<void(CopiedTensors*)>& edit);

// Keys of a GGUF file and their new values; kFloat32 numbers and kUint32 integers.
using GgufChanges = std::map<std::string, GgufValue>;
// A file at `path` with what tests/golden/gguf/NAME.gguf holds, but for changed keys and edited
// tensors.
void CopyGguf(const std::string& name, const std::string& path, const GgufChanges& changes,
              const std::function<void(CopiedTensors*)>& edit = nullptr);

// Reads the configuration and then all weights of a folder or a GGUF file, as the engine does.
Status OpenModel(const std::string& model);

// Fails unless the status is an error of a damaged or unsupported model, in one printable line that
// holds `needle`.
void ExpectOneClearError(const Status& status, const std::string& needle);

}  // namespace kvlathe::testing

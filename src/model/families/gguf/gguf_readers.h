// What the readers of GGUF architectures share: each turns the keys of a file into the object that
// config.json would hold.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "io/gguf/gguf.h"
#include "tensor/dtype.h"

namespace kvlathe::gguf {

inline constexpr int64_t kMaxSize = int64_t{1} << 26;

// The keys of one architecture: "block_count" is "llama.block_count" there.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  std::string Name(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  bool Has(std::string_view key) const { return file_.FindValue(Name(key)) != nullptr; }

  // Copies an integer that must be there to a field of config.json.
  Status Copy(std::string_view key, const char* field, nlohmann::json* config) const {
    if (!Has(key)) {
      return Error(StatusCode::kDataLoss, "{}: the key '{}' is missing", file_.path(), Name(key));
    }
    return CopyIfThere(key, field, config);
  }
  Status CopyIfThere(std::string_view key, const char* field, nlohmann::json* config) const {
    if (!Has(key)) return OkStatus();
    KVL_RETURN_IF_ERROR(RefuseList(key));
    KVL_ASSIGN_OR_RETURN((*config)[field], file_.IntegerOr(Name(key), 0, 0, kMaxSize));
    return OkStatus();
  }
  Status CopyNumberIfThere(std::string_view key, const char* field, nlohmann::json* config) const {
    if (!Has(key)) return OkStatus();
    KVL_ASSIGN_OR_RETURN((*config)[field], file_.NumberOr(Name(key), 0, 0, 1e12));
    return OkStatus();
  }

 private:
  // Some models have a number for each layer.
  Status RefuseList(std::string_view key) const {
    const GgufValue* value = file_.FindValue(Name(key));
    if (!std::holds_alternative<std::vector<int64_t>>(*value)) return OkStatus();
    return Error(StatusCode::kUnimplemented,
                 "{}: '{}' differs from layer to layer; this build runs models whose layers are "
                 "alike",
                 file_.path(), Name(key));
  }

  const GgufFile& file_;
  std::string architecture_;
};

struct Context {
  const GgufFile& file;
  const ArchitectureKeys& keys;
  nlohmann::json* config;
  bool HasTensor(std::string_view name) const { return file.FindTensor(name) != nullptr; }
};

// rope_scaling, from the keys and from tensors of factors.
Status ReadRopeScaling(const Context& c);
// What all architectures have.
Status ReadSizes(const Context& c);
// What Llama, Qwen2 and Phi-3 share.
Status ReadLlamaLike(const Context& c);
int64_t HeadDim(const nlohmann::json& config);
// The share of channels that rotate.
Status ReadRotaryFraction(const Context& c);
// Of a family whose heads rotate whole.
Status RequireWholeRotary(const Context& c);
Status ReadWindow(const Context& c);
// The window of every layer that is not the last of so many, or whose number in a list is 1.
Status ReadWindowPattern(const Context& c, int64_t default_window, int64_t default_period);
// Layers that guess further tokens stand behind those of the model, and are not read.
Status DropNextLayers(const Context& c);
Status RefuseExperts(const Context& c);

// What Granites with and without experts share.
Status ReadGraniteLike(const Context& c);

// The experts of a Llama, of a file that has been read as one.
Status ReadMixtral(const Context& c);

// An architecture, by its name in general.architecture, and what reads it.
struct Architecture {
  std::string_view name;
  Status (*read)(const Context& context);
  bool has_neighbour_pairs = false;  // ModelConfig::has_neighbour_pairs
};

// The architectures of each file.
std::span<const Architecture> FirstFamilies();
std::span<const Architecture> LayerNormFamilies();
std::span<const Architecture> RmsNormFamilies();
std::span<const Architecture> DenseFamilies();
std::span<const Architecture> ExpertFamilies();

}  // namespace kvlathe::gguf

// What the readers of GGUF architectures share: each turns the keys of a file into the object that
// config.json would hold.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
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

// Architectures, by general.architecture.
Status ReadLlama(const Context& c);
Status ReadQwen2(const Context& c);
Status ReadQwen3(const Context& c);
Status ReadGemma3(const Context& c);
Status ReadPhi3(const Context& c);
Status ReadGpt2(const Context& c);
Status ReadFalcon(const Context& c);

Status ReadGemma(const Context& c);
Status ReadGemma2(const Context& c);
Status ReadSmolLm3(const Context& c);
Status ReadOlmo2(const Context& c);
Status ReadGranite(const Context& c);
// What Granites with and without experts share.
Status ReadGraniteLike(const Context& c);
Status ReadGlm4(const Context& c);
Status ReadCommandR(const Context& c);
Status ReadCohere2(const Context& c);
Status ReadExaone4(const Context& c);
Status ReadMistral3(const Context& c);

// Those with LayerNorm, gguf_layer_norm_families.cc.
Status ReadStarcoder2(const Context& c);
Status ReadStableLm(const Context& c);
Status ReadGptNeox(const Context& c);
Status ReadPhi2(const Context& c);
Status ReadNemotron(const Context& c);
Status ReadJais2(const Context& c);
Status ReadOlmo(const Context& c);
Status ReadOrion(const Context& c);

// Those with RMSNorm, gguf_rms_norm_families.cc.
Status ReadSeedOss(const Context& c);
Status ReadHunyuanDense(const Context& c);
Status ReadErnie45(const Context& c);
Status ReadInternLm2(const Context& c);
Status ReadArcee(const Context& c);
Status ReadApertus(const Context& c);
Status ReadExaone(const Context& c);
Status ReadXverse(const Context& c);
Status ReadQwen(const Context& c);
Status ReadMiniCpm(const Context& c);

// With experts (gguf_experts.cc).
Status ReadMixtral(const Context& c);  // of a file that ReadLlama has read
Status ReadQwen2Moe(const Context& c);
Status ReadQwen3Moe(const Context& c);
Status ReadOlmoe(const Context& c);
Status ReadGraniteMoe(const Context& c);
Status ReadGptOss(const Context& c);
Status ReadGlm4Moe(const Context& c);
Status ReadErnieMoe(const Context& c);
Status ReadPhiMoe(const Context& c);
Status ReadBailingMoe2(const Context& c);

}  // namespace kvlathe::gguf

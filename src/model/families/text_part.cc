#include "model/families/text_part.h"

namespace kvlathe {
namespace {

using nlohmann::json;

// The family of a language model that does not say it.
std::string FamilyWithin(const std::string& model_type) {
  if (model_type == "gemma3") return "gemma3_text";
  if (model_type == "mistral3" || model_type == "pixtral") return "mistral";
  return "llama";
}

// Such configs leave out what is as transformers has it by default. What a reader assumes of itself
// is not listed here.
const json& DefaultsOf(const std::string& family) {
  static const json of_families = {
      {"llama",
       {{"hidden_size", 4096},
        {"intermediate_size", 11008},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"vocab_size", 32000},
        {"max_position_embeddings", 2048}}},
      {"mistral",
       {{"hidden_size", 4096},
        {"intermediate_size", 14336},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"vocab_size", 32000},
        {"max_position_embeddings", 131072},
        {"sliding_window", 4096}}},
      {"ministral3",
       {{"hidden_size", 4096},
        {"intermediate_size", 14336},
        {"num_hidden_layers", 34},
        {"num_attention_heads", 32},
        {"vocab_size", 131072}}},
      {"qwen2",
       {{"hidden_size", 4096},
        {"intermediate_size", 22016},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 32},
        {"vocab_size", 151936},
        {"max_position_embeddings", 32768}}},
      {"qwen3",
       {{"hidden_size", 4096},
        {"intermediate_size", 22016},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 32},
        {"head_dim", 128},
        {"vocab_size", 151936},
        {"max_position_embeddings", 32768}}},
      {"gemma",
       {{"hidden_size", 3072},
        {"intermediate_size", 24576},
        {"num_hidden_layers", 28},
        {"num_attention_heads", 16},
        {"vocab_size", 256000}}},
      {"gemma2",
       {{"hidden_size", 2304},
        {"intermediate_size", 9216},
        {"num_hidden_layers", 26},
        {"num_attention_heads", 8},
        {"vocab_size", 256000}}},
      {"gemma3_text",
       {{"hidden_size", 2304},
        {"intermediate_size", 9216},
        {"num_hidden_layers", 26},
        {"num_attention_heads", 8},
        {"vocab_size", 262208}}},
  };
  static const json none = json::object();
  return of_families.contains(family) ? of_families.at(family) : none;
}

}  // namespace

StatusOr<json> TextPart(const json& config, const std::string& where) {
  const char* const key = "text_config";
  if (!config.contains(key) || config.at(key).is_null()) return config;
  if (!config.at(key).is_object()) {
    return Error(StatusCode::kDataLoss, "{}: '{}' is not an object", where, key);
  }
  const auto text_of = [](const json& object, const char* name) {
    const bool is_there = object.contains(name) && object.at(name).is_string();
    return is_there ? object.at(name).get<std::string>() : std::string();
  };
  const std::string outer = text_of(config, "model_type");
  if (outer == "paligemma" || outer == "colpali") {
    return Error(StatusCode::kUnimplemented,
                 "{}: model_type '{}' is not supported: every token of its prompt sees all of it",
                 where, outer);
  }
  std::string family = text_of(config.at(key), "model_type");
  if (family.empty()) family = FamilyWithin(outer);
  json text = DefaultsOf(family);
  text.update(config.at(key));
  text["model_type"] = family;
  for (const char* shared :
       {"quantization_config", "tie_word_embeddings", "bos_token_id", "eos_token_id"}) {
    if (!text.contains(shared) && config.contains(shared)) text[shared] = config.at(shared);
  }
  return text;
}

}  // namespace kvlathe

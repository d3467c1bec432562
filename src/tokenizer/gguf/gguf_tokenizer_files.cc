#include "tokenizer/gguf/gguf_tokenizer_files.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "io/files.h"
#include "tokenizer/gguf/gguf_sentencepiece.h"
#include "tokenizer/gguf/gguf_tokenizer.h"
#include "tokenizer/gguf/gguf_tokens.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPreTokenizerKey = "tokenizer.ggml.pre";
constexpr std::string_view kChatKey = "tokenizer.chat_template";

Json ByteLevel(bool uses_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", uses_regex}};
}

Json Split(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json Digits(bool individual) { return {{"type", "Digits"}, {"individual_digits", individual}}; }

// The steps of "falcon", whose digits are looked for among the letters that stand for bytes.
Json FalconSteps() {
  return Json::array({{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                      ByteLevel(true),
                      Digits(false),
                      Split("[0-9][0-9][0-9]")});
}

// The section "pre_tokenizer".
Json PreTokenizerJson(const NamedPreTokenizer& named) {
  Json steps = named.patterns.empty() ? FalconSteps() : Json::array();
  bool uses_regex = false;
  for (const std::string_view pattern : named.patterns) {
    uses_regex = pattern == kGpt2Pattern && pattern == named.patterns.back();
    if (uses_regex) break;
    steps.push_back(pattern == R"(\p{N})" ? Digits(true) : Split(pattern));
  }
  if (!named.patterns.empty()) steps.push_back(ByteLevel(uses_regex));
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Json AddedTokenJson(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

// What stands before a text.
Json PostProcessorJson(const GgufTokens& tokens, bool adds_bos) {
  if (!adds_bos || !tokens.bos_id.has_value()) return nullptr;
  const std::string bos(tokens.texts[*tokens.bos_id]);
  const Json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto text = [](const char* id, int type) -> Json {
    return {{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({special, text("A", 0)})},
          {"pair", Json::array({special, text("A", 0), text("B", 1)})},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {*tokens.bos_id}}, {"tokens", {bos}}}}}}};
}

Json ModelJson(const GgufTokens& tokens, const std::vector<std::string_view>& merges,
               bool ignores_merges) {
  Json vocab = Json::object();
  for (int id = 0; id < tokens.size(); ++id) vocab[std::string(tokens.texts[id])] = id;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", ignores_merges},
          {"vocab", std::move(vocab)},
          {"merges", merges}};
}

Status WriteJson(const GgufFile& file, const Json& json, const std::string& path) {
  std::string text;
  try {
    text = json.dump(1);
  } catch (const Json::exception&) {
    return Error(StatusCode::kDataLoss, "{}: its tokenizer has a text that is not UTF-8",
                 file.path());
  }
  return WriteFileAtomically(path, text + "\n");
}

Status WriteConfig(const GgufFile& file, const GgufTokens& tokens, Json config,
                   const std::string& directory) {
  const auto text_of = [&](std::optional<int32_t> id) -> Json {
    return id.has_value() ? Json(std::string(tokens.texts[*id])) : Json(nullptr);
  };
  config["bos_token"] = text_of(tokens.bos_id);
  config["eos_token"] = text_of(tokens.eos_id);
  config["clean_up_tokenization_spaces"] = false;
  KVL_ASSIGN_OR_RETURN(const std::string chat, file.TextOr(kChatKey, ""));
  KVL_ASSIGN_OR_RETURN(const std::string tool_use,
                       file.TextOr(std::string(kChatKey) + ".tool_use", ""));
  if (!chat.empty()) config["chat_template"] = chat;
  if (!chat.empty() && !tool_use.empty()) {
    config["chat_template"] = Json::array({{{"name", "default"}, {"template", chat}},
                                           {{"name", "tool_use"}, {"template", tool_use}}});
  }
  return WriteJson(file, config, directory + "/tokenizer_config.json");
}

Status WriteByteLevel(const GgufFile& file, bool adds_bos, const std::string& directory) {
  KVL_ASSIGN_OR_RETURN(std::string name, file.TextOr(kPreTokenizerKey, ""));
  if (name.empty()) name = "default";
  KVL_ASSIGN_OR_RETURN(const NamedPreTokenizer named, FindPreTokenizer(name));
  if (!named.byte_level) {
    return Error(StatusCode::kUnimplemented,
                 "{}: {}: \"{}\" is not written as tokenizer.json; name a directory that has the "
                 "model's tokenizer.json",
                 file.path(), kPreTokenizerKey, name);
  }
  KVL_ASSIGN_OR_RETURN(const GgufTokens tokens, ReadGgufTokens(file, std::nullopt, std::nullopt));
  KVL_ASSIGN_OR_RETURN(const auto* merges, file.Texts("tokenizer.ggml.merges"));
  if (merges == nullptr) {
    return Error(StatusCode::kUnimplemented,
                 "{}: a tokenizer without tokenizer.ggml.merges is not written as tokenizer.json",
                 file.path());
  }
  Json added = Json::array();
  for (int id = 0; id < tokens.size(); ++id) {
    if (!tokens.IsAdded(id)) continue;
    added.push_back(AddedTokenJson(tokens.AddedTokenOf(id)));
    added.back()["id"] = id;
  }
  const Json normalizer = named.composes ? Json{{"type", "NFC"}} : Json(nullptr);
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", normalizer},
                     {"pre_tokenizer", PreTokenizerJson(named)},
                     {"post_processor", PostProcessorJson(tokens, adds_bos)},
                     {"decoder", ByteLevel(true)},
                     {"model", ModelJson(tokens, *merges, named.ignore_merges)}};
  KVL_RETURN_IF_ERROR(WriteJson(file, json, directory + "/tokenizer.json"));
  return WriteConfig(file, tokens,
                     {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_bos_token", adds_bos}},
                     directory);
}

Status WriteSentencePiece(const GgufFile& file, bool adds_bos, const std::string& directory) {
  KVL_ASSIGN_OR_RETURN(const GgufSentencePiece model, ReadGgufSentencePiece(file));
  KVL_RETURN_IF_ERROR(WriteFileAtomically(directory + "/tokenizer.model", model.serialized));
  Json added = Json::object();
  for (const AddedToken& token : model.added_tokens) {
    added[std::to_string(token.id)] = AddedTokenJson(token);
  }
  return WriteConfig(file, model.tokens,
                     {{"tokenizer_class", "LlamaTokenizer"},
                      {"add_bos_token", adds_bos},
                      {"added_tokens_decoder", std::move(added)}},
                     directory);
}

}  // namespace

Status WriteGgufTokenizer(const GgufFile& file, const std::string& directory) {
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadGgufTokenizer(file));
  const bool adds_bos = !tokenizer->Tokenize("", /*add_bos=*/true).empty();
  KVL_ASSIGN_OR_RETURN(const std::string model, file.TextOr("tokenizer.ggml.model", ""));
  return model == "llama" ? WriteSentencePiece(file, adds_bos, directory)
                          : WriteByteLevel(file, adds_bos, directory);
}

}  // namespace kvlathe

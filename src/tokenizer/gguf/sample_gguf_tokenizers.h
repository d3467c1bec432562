// Tests have small tokenizers as the metadata of GGUF files.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/gguf/gguf_test_writer.h"
#include "tokenizer/sample_tokenizers.h"

namespace kvlathe {

// Lists that are empty are left out of the file.
struct GgufTokenizerSample {
  std::string model;
  std::optional<std::string> pre;
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<double> scores;
  std::vector<std::string> merges;
  std::map<std::string, int64_t> ids;        // "bos" is tokenizer.ggml.bos_token_id
  std::map<std::string, bool> flags;         // "add_bos_token" is tokenizer.ggml.add_bos_token
  std::map<std::string, std::string> texts;  // by whole key

  // The new token's id.
  int32_t Add(const std::string& token, int64_t type, double score = 0) {
    tokens.push_back(token);
    types.push_back(type);
    if (!scores.empty()) scores.push_back(score);
    return static_cast<int32_t>(tokens.size()) - 1;
  }

  void Write(const std::string& path) const {
    const std::string prefix = "tokenizer.ggml.";
    GgufTestWriter writer;
    writer.AddText("general.architecture", "llama");
    if (!model.empty()) writer.AddText(prefix + "model", model);
    if (pre) writer.AddText(prefix + "pre", *pre);
    if (!tokens.empty()) writer.AddTexts(prefix + "tokens", tokens);
    if (!types.empty()) writer.AddIntegers(prefix + "token_type", types);
    if (!scores.empty()) writer.AddFloats(prefix + "scores", scores);
    if (!merges.empty()) writer.AddTexts(prefix + "merges", merges);
    for (const auto& [name, id] : ids) writer.AddInteger(prefix + name + "_token_id", id);
    for (const auto& [name, flag] : flags) writer.AddBool(prefix + name, flag);
    for (const auto& [key, text] : texts) writer.AddText(key, text);
    writer.Write(path);
  }
};

inline std::vector<std::string> TokensOf(const nlohmann::json& vocab) {
  std::vector<std::string> tokens(vocab.size());
  for (const auto& [token, id] : vocab.items()) tokens[id.get<size_t>()] = token;
  return tokens;
}

// Byte-level BPE: ByteLevelSample without its special token.
inline GgufTokenizerSample GgufByteLevelSample(std::optional<std::string> pre) {
  const nlohmann::json model = ByteLevelSample()["model"];
  GgufTokenizerSample sample{.model = "gpt2", .pre = std::move(pre)};
  sample.tokens = TokensOf(model["vocab"]);
  sample.types.assign(sample.tokens.size(), 1);
  sample.merges = model["merges"].get<std::vector<std::string>>();
  return sample;
}

// SentencePiece BPE: the pieces of SentencePieceSample.
inline GgufTokenizerSample GgufSentencePieceSample() {
  GgufTokenizerSample sample{.model = "llama"};
  sample.tokens = TokensOf(CharLevelSample()["model"]["vocab"]);
  for (size_t id = 0; id < sample.tokens.size(); ++id) {
    sample.types.push_back(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
    sample.scores.push_back(-static_cast<double>(id));
  }
  return sample;
}

}  // namespace kvlathe

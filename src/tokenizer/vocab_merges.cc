// vocab.json + merges.txt, which say nothing about pre-tokenizer, normaliser or special tokens:
// those come from the tokenizer's class.
#include <algorithm>
#include <utility>

#include "io/files.h"
#include "tokenizer/files/bpe_files.h"
#include "tokenizer/loaders.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

constexpr std::pair<std::string_view, std::string_view> kOfModelTypes[] = {
    {"starcoder2", "starcoder"},
    {"gpt_neox", "olmo"},
    {"cohere", "command-r"},
    {"cohere2", "command-r"},
    {"qwen2_moe", "qwen2"},
    {"qwen3", "qwen2"},
    {"qwen3_moe", "qwen2"},
    {"llama", "llama3"},  // of the Llama family only 3 has bytes
    {"gpt2", "gpt2"},
    {"qwen2", "qwen2"},
    {"falcon", "falcon"},
};
constexpr std::pair<std::string_view, std::string_view> kOfClasses[] = {
    {"Qwen2Tokenizer", "qwen2"},   {"GPTNeoXTokenizer", "olmo"}, {"CohereTokenizer", "command-r"},
    {"CodeGenTokenizer", "phi-2"}, {"GPT2Tokenizer", "gpt2"},
};

StatusOr<std::string> PreTokenizerName(const std::string& directory, const ModelSettings& settings,
                                       const std::string& pre) {
  if (!pre.empty()) return pre;
  const bool is_starcoder = settings.model_type == "starcoder2";  // whose class is GPT-2's
  for (const auto& [tokenizer_class, name] : kOfClasses) {
    const bool is_class = settings.tokenizer_class.starts_with(tokenizer_class);
    if (is_class && !is_starcoder) return std::string(name);
  }
  for (const auto& [model_type, name] : kOfModelTypes) {
    if (settings.model_type == model_type) return std::string(name);
  }
  return Error(StatusCode::kUnimplemented,
               "{}: tokenizer_class \"{}\" and model_type \"{}\" do not tell the pre-tokenizer of "
               "vocab.json; name it (gpt2, llama3, qwen2, falcon, ...)",
               directory, settings.tokenizer_class, settings.model_type);
}

// GPT-2, Qwen2 and Falcon end their texts with this token, whether or not a file says so.
constexpr std::string_view kEndOfText = "<|endoftext|>";

void AddEndOfText(TokenizerParts* parts) {
  const auto id = parts->vocabulary.Find(kEndOfText);
  if (!id) return;
  const bool is_listed = std::any_of(parts->added_tokens.begin(), parts->added_tokens.end(),
                                     [&](const AddedToken& token) { return token.id == *id; });
  if (is_listed) return;
  parts->added_tokens.push_back(
      {.id = *id, .content = std::string(kEndOfText), .normalized = false, .special = true});
}

void ResolveSpecials(const ModelSettings& settings, const std::string& pre, bool adds_bos,
                     TokenizerParts* parts) {
  const auto end_of_text = parts->vocabulary.Find(kEndOfText);
  parts->bos_id = ResolveBos(settings, parts->vocabulary);
  if (!parts->bos_id && !settings.has_no_bos && pre == "gpt2") parts->bos_id = end_of_text;
  parts->eos_id = ResolveEos(settings, parts->vocabulary);
  if (!parts->eos_id && !settings.has_no_eos) parts->eos_id = end_of_text;
  if (settings.add_bos_token.value_or(adds_bos) && parts->bos_id)
    parts->prefix_ids = {*parts->bos_id};
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> LoadVocabAndMerges(const std::string& directory,
                                                        const ModelSettings& settings,
                                                        const std::string& pre_option) {
  KVL_ASSIGN_OR_RETURN(const std::string pre, PreTokenizerName(directory, settings, pre_option));
  TokenizerParts parts;
  parts.byte_level = parts.decoder.byte_level = true;
  KVL_ASSIGN_OR_RETURN(NamedPreTokenizer named, FindPreTokenizer(pre));
  if (!named.byte_level) {
    return Error(StatusCode::kUnimplemented,
                 "{}: the pre-tokenizer \"{}\" is for tokens that are characters, not for "
                 "vocab.json",
                 directory, pre);
  }
  parts.pre_tokenizer = std::move(named.pre_tokenizer);
  parts.normalizer = std::move(named.normalizer);
  parts.bpe.ignore_merges = named.ignore_merges;

  const std::string vocab_path = directory + "/vocab.json";
  KVL_ASSIGN_OR_RETURN(const nlohmann::json vocab, ReadJsonFile(vocab_path));
  KVL_RETURN_IF_ERROR(InFile(vocab_path, AddVocabulary(vocab, &parts.vocabulary)));
  const std::string merges_path = directory + "/merges.txt";
  KVL_ASSIGN_OR_RETURN(const std::string merges, ReadTextFile(merges_path));
  KVL_RETURN_IF_ERROR(
      InFile(merges_path, AddMergeLines(merges, parts.vocabulary, &parts.bpe.merges)));

  KVL_RETURN_IF_ERROR(
      InFile(directory + "/tokenizer_config.json",
             MergeAddedTokens(settings.added_tokens, &parts.vocabulary, &parts.added_tokens)));
  AddEndOfText(&parts);
  ResolveSpecials(settings, pre, named.adds_bos, &parts);
  return std::make_unique<TextTokenizer>(std::move(parts));
}

}  // namespace kvlathe

#include "training/tokenizer_training/tokenizer_training.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/atomic_file.h"
#include "io/files.h"
#include "training/tokenizer_training/sentencepiece_model.h"
#include "training/tokenizer_training/sentencepiece_trainer_library.h"
#include "training/tokenizer_training/tokenizer_json_writer.h"
#include "training/tokenizer_training/training_text.h"

namespace kvlathe {
namespace {

constexpr int kMinVocabSize = 512;
constexpr int kMaxVocabSize = 65536;
constexpr double kMinCoverage = 0.98;  // the library's bounds, as that of the threads
constexpr int kMaxThreads = 128;
constexpr int64_t kMinTextBytes = 64 << 10;
// Several times the model with the largest vocabulary.
constexpr int64_t kMaxModelBytes = 16 << 20;

constexpr const char* kRequiredChars = "\n0123456789";
// The library stops the process on a required character that the text does not have. No piece has
// characters of two scripts, so beside letters these stay pieces of one character.
constexpr const char* kRequiredSentence = "a\na0a1a2a3a4a5a6a7a8a9a";

Status CheckOptions(const TokenizerTrainingOptions& options) {
  const auto out_of_range = [](const char* name, auto value, auto least, auto most) {
    return Error(StatusCode::kInvalidArgument, "{} is {}; it must be from {} to {}", name, value,
                 least, most);
  };
  if (options.vocab_size < kMinVocabSize || options.vocab_size > kMaxVocabSize) {
    return out_of_range("vocab_size", options.vocab_size, kMinVocabSize, kMaxVocabSize);
  }
  if (!(options.character_coverage >= kMinCoverage && options.character_coverage <= 1.0)) {
    return out_of_range("character_coverage", options.character_coverage, kMinCoverage, 1.0);
  }
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return out_of_range("threads", options.threads, 1, kMaxThreads);
  }
  if (options.max_text_bytes < kMinTextBytes) {
    return Error(StatusCode::kInvalidArgument, "max_text_bytes is {}; it must be at least {}",
                 options.max_text_bytes, kMinTextBytes);
  }
  return OkStatus();
}

std::unordered_map<std::string, std::string> SettingsOf(const TokenizerTrainingOptions& options) {
  return {
      {"model_type", "bpe"},
      {"vocab_size", fmt::format("{}", options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"num_threads", fmt::format("{}", options.threads)},
      {"split_digits", options.split_digits ? "true" : "false"},
      {"max_sentence_length", fmt::format("{}", kMaxSentenceBytes)},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "true"},
      {"required_chars", kRequiredChars},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"minloglevel", "2"},
  };
}

StatusOr<std::string> TrainModel(std::span<const std::string> text_paths,
                                 const TokenizerTrainingOptions& options) {
  KVL_ASSIGN_OR_RETURN(std::vector<std::string> sentences,
                       ReadTrainingText(text_paths, options.max_text_bytes));
  if (sentences.empty()) {
    return Error(StatusCode::kInvalidArgument, "no text to train a tokenizer on in {} file(s)",
                 text_paths.size());
  }
  sentences.emplace_back(kRequiredSentence);
  std::string model, reason;
  if (!TrainWithSentencePiece(SettingsOf(options), sentences, &model, &reason)) {
    return Error(StatusCode::kInvalidArgument, "cannot train a tokenizer on this text: {}", reason);
  }
  return model;
}

std::string TokenizerConfig() {
  const nlohmann::ordered_json config = {
      {"tokenizer_class", "LlamaTokenizer"},
      {"add_bos_token", true},
      {"add_eos_token", false},
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"unk_token", "<unk>"},
      {"clean_up_tokenization_spaces", false},
  };
  return config.dump(2) + "\n";
}

}  // namespace

StatusOr<std::string> TokenizerJsonOfSentencePiece(const std::string& model_path) {
  KVL_ASSIGN_OR_RETURN(const std::string serialized, ReadTextFile(model_path, kMaxModelBytes));
  const auto in_file = [&](const Status& status) {
    return Error(status.code(), "{}: {}", model_path, MessageOf(status));
  };
  const StatusOr<SentencePieceModel> model = SentencePieceModel::Parse(serialized);
  if (!model.ok()) return in_file(model.status());
  StatusOr<std::string> json = TokenizerJsonOf(*model);
  if (!json.ok()) return in_file(json.status());
  return json;
}

Status TrainTokenizer(std::span<const std::string> text_paths,
                      const TokenizerTrainingOptions& options, const std::string& directory) {
  KVL_RETURN_IF_ERROR(CheckOptions(options));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error(StatusCode::kInternal, "cannot make the folder {}: {}", directory,
                 error.message());
  }
  // Opened before the training, whose minutes would be lost to a folder that takes no file.
  KVL_ASSIGN_OR_RETURN(AtomicFile model_file, AtomicFile::Create(directory + "/tokenizer.model"));
  KVL_ASSIGN_OR_RETURN(AtomicFile json_file, AtomicFile::Create(directory + "/tokenizer.json"));
  KVL_ASSIGN_OR_RETURN(AtomicFile config_file,
                       AtomicFile::Create(directory + "/tokenizer_config.json"));
  KVL_ASSIGN_OR_RETURN(const std::string serialized, TrainModel(text_paths, options));
  KVL_ASSIGN_OR_RETURN(const SentencePieceModel model, SentencePieceModel::Parse(serialized));
  KVL_ASSIGN_OR_RETURN(const std::string json, TokenizerJsonOf(model));
  const std::string config = TokenizerConfig();
  for (const auto& [file, contents] :
       {std::pair(&model_file, &serialized), std::pair(&config_file, &config),
        std::pair(&json_file, &json)}) {
    KVL_RETURN_IF_ERROR(file->Write(contents->data(), static_cast<int64_t>(contents->size())));
    KVL_RETURN_IF_ERROR(file->Commit());
  }
  return OkStatus();
}

}  // namespace kvlathe

#include "training/corpus/corpus.h"

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "io/files.h"

namespace kvlathe {
namespace {

using Json = nlohmann::json;

constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tekken.json"};

StatusOr<CorpusInfo> ReadInfo(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  CorpusInfo info;
  try {
    info.vocab_size = json.at("vocab_size").get<int>();
    info.bos_id = json.at("bos_id").get<int>();
    for (const auto& [name, source] : json.at("sources").items()) {
      SourceInfo s;
      s.file = source.at("file").get<std::string>();
      s.row_tokens = source.at("row_tokens").get<int>();
      s.n_tokens = source.at("n_tokens").get<int64_t>();
      s.n_bytes = source.at("n_bytes").get<int64_t>();
      info.sources[name] = s;
    }
  } catch (const Json::exception& error) {
    return Error(StatusCode::kDataLoss, "{}: not a corpus description ({}); build the corpus again",
                 path, error.what());
  }
  if (info.vocab_size < 1 || info.vocab_size > kMaxCorpusVocabSize || info.bos_id < -1 ||
      info.bos_id >= info.vocab_size) {
    return Error(StatusCode::kDataLoss, "{}: vocab_size {} or bos_id {} out of range", path,
                 info.vocab_size, info.bos_id);
  }
  return info;
}

Status CheckTokens(const std::string& path, const SourceInfo& source, int vocab_size,
                   const TokenView& tokens) {
  if (tokens.size() != source.n_tokens || source.row_tokens < 0 ||
      (source.row_tokens > 0 && source.n_tokens % source.row_tokens != 0)) {
    return Error(StatusCode::kDataLoss, "{}: {} tokens, but {} says {}; build the corpus again",
                 path, tokens.size(), kCorpusFile, source.n_tokens);
  }
  for (int64_t i = 0; i < tokens.size(); ++i) {
    const uint32_t id = tokens[i] & ~kNotLearned;
    if (id < static_cast<uint32_t>(vocab_size)) continue;
    return Error(StatusCode::kDataLoss, "{}: token id {} at {} is outside the vocabulary of {}",
                 path, id, i, vocab_size);
  }
  return OkStatus();
}

constexpr uint16_t kNotLearnedInFile16 = uint16_t{1} << 15;

}  // namespace

void AppendTokens(std::span<const uint32_t> tokens, int vocab_size, std::string* bytes) {
  const auto append = [&](auto number) {
    bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const uint32_t token : tokens) {
    if (TokenFileBytes(vocab_size) == 4) {
      append(token);
    } else {
      const auto id = static_cast<uint16_t>(token & ~kNotLearned);
      append(static_cast<uint16_t>(id | ((token & kNotLearned) != 0 ? kNotLearnedInFile16 : 0)));
    }
  }
}

uint32_t TokenView::operator[](int64_t i) const {
  if (bytes_per_token_ == 4) {
    uint32_t token = 0;
    std::memcpy(&token, data_ + 4 * i, 4);
    return token;
  }
  uint16_t token = 0;
  std::memcpy(&token, data_ + 2 * i, 2);
  const bool is_learned = (token & kNotLearnedInFile16) == 0;
  return is_learned ? token
                    : uint32_t{static_cast<uint16_t>(token ^ kNotLearnedInFile16)} | kNotLearned;
}

void TokenView::Copy(int64_t begin, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = (*this)[begin + static_cast<int64_t>(i)];
}

Status WriteCorpusInfo(const std::string& directory, const CorpusInfo& info) {
  nlohmann::ordered_json json = {{"vocab_size", info.vocab_size}, {"bos_id", info.bos_id}};
  for (const auto& [name, source] : info.sources) {
    json["sources"][name] = {{"file", source.file},
                             {"row_tokens", source.row_tokens},
                             {"n_tokens", source.n_tokens},
                             {"n_bytes", source.n_bytes}};
  }
  return WriteFileAtomically(directory + "/" + kCorpusFile, json.dump(2) + "\n");
}

Status CopyTokenizer(const std::string& from_directory, const std::string& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    return Error(StatusCode::kNotFound, "{}: cannot make the directory: {}", directory,
                 failed.message());
  }
  for (const char* name : kTokenizerFiles) {
    const std::filesystem::path from = std::filesystem::path(from_directory) / name;
    if (!FileExists(from.string())) continue;
    KVL_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(from.string()));
    KVL_RETURN_IF_ERROR(
        WriteFileAtomically((std::filesystem::path(directory) / name).string(), contents));
  }
  return OkStatus();
}

StatusOr<Corpus> Corpus::Open(const std::string& directory) {
  Corpus corpus;
  KVL_ASSIGN_OR_RETURN(corpus.info_, ReadInfo(directory + "/" + kCorpusFile));
  for (const auto& [name, source] : corpus.info_.sources) {
    const std::string path = directory + "/" + source.file;
    KVL_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    corpus.files_.emplace(name, std::move(file));
    KVL_RETURN_IF_ERROR(CheckTokens(path, source, corpus.info_.vocab_size, corpus.tokens(name)));
  }
  return corpus;
}

const SourceInfo* Corpus::Find(const std::string& source) const {
  const auto found = info_.sources.find(source);
  return found == info_.sources.end() ? nullptr : &found->second;
}

TokenView Corpus::tokens(const std::string& source) const {
  const MappedFile& file = files_.at(source);
  const int bytes_per_token = TokenFileBytes(info_.vocab_size);
  return {file.bytes().data(), file.n_bytes() / bytes_per_token, bytes_per_token};
}

}  // namespace kvlathe

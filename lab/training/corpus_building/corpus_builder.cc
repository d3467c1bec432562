#include "training/corpus_building/corpus_builder.h"

#include <nlohmann/json.hpp>

#include "io/atomic_file.h"
#include "io/files.h"
#include "tokenizer/gguf/gguf_tokenizer.h"
#include "tokenizer/gguf/gguf_tokenizer_files.h"
#include "training/corpus/corpus.h"
#include "training/corpus_building/source_text.h"
#include "training/corpus_building/task_rows.h"

namespace kvlathe {
namespace {

using Json = nlohmann::json;

// Every task source has a seed of its own, so that no two hold the same examples.
constexpr uint64_t kFirstTaskSeed = uint64_t{1} << 32;

StatusOr<SourceRecipe> ParseSource(const Json& json, const std::string& where) {
  SourceRecipe source;
  try {
    for (const auto& [key, value] : json.items()) {
      if (key == "files") {
        source.files = value.get<std::vector<std::string>>();
      } else if (key == "document") {
        source.document = value.get<std::string>();
      } else if (key == "tasks") {
        source.tasks = value.get<std::map<std::string, double>>();
      } else if (key == "context") {
        source.context = value.get<int>();
      } else if (key == "answers_only") {
        source.answers_only = value.get<bool>();
      } else if (key == "n_tokens") {
        source.n_tokens = value.get<int64_t>();
      } else {
        return Error(StatusCode::kInvalidArgument, "{}: unknown key \"{}\"", where, key);
      }
    }
  } catch (const Json::exception& error) {
    return Error(StatusCode::kInvalidArgument, "{}: {}", where, error.what());
  }
  if (source.files.empty() == source.tasks.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: give one of \"files\" and \"tasks\"", where);
  }
  if (source.answers_only && source.tasks.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: \"answers_only\" is for tasks", where);
  }
  if (!source.tasks.empty() && (source.context < 2 || source.context > (1 << 20) ||
                                source.n_tokens < 1 || source.n_tokens > int64_t{1} << 40)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: tasks need \"context\" (2 or more) and \"n_tokens\" (1 or more)", where);
  }
  return source;
}

// Token ids on their way to a file; disk and memory see them in pieces.
class TokenFile {
 public:
  static StatusOr<TokenFile> Create(const std::string& path, int vocab_size) {
    KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
    return TokenFile(std::move(file), vocab_size);
  }
  Status Write(std::span<const uint32_t> tokens) {
    n_tokens_ += static_cast<int64_t>(tokens.size());
    AppendTokens(tokens, vocab_size_, &pending_);
    return pending_.size() < (size_t{1} << 21) ? OkStatus() : Flush();
  }
  Status Commit() {
    KVL_RETURN_IF_ERROR(Flush());
    return file_.Commit();
  }
  int64_t n_tokens() const { return n_tokens_; }

 private:
  TokenFile(AtomicFile file, int vocab_size) : file_(std::move(file)), vocab_size_(vocab_size) {}
  Status Flush() {
    const Status written = file_.Write(pending_.data(), static_cast<int64_t>(pending_.size()));
    pending_.clear();
    return written;
  }

  AtomicFile file_;
  int vocab_size_;
  std::string pending_;  // bytes
  int64_t n_tokens_ = 0;
};

Status WriteText(const SourceRecipe& recipe, const std::string& data_directory,
                 const Tokenizer& tokenizer, TokenFile* file, int64_t* n_bytes) {
  Status written;
  std::vector<uint32_t> tokens;
  const auto take = [&](std::string_view text) {
    const auto ids = tokenizer.TryTokenize(text, /*add_bos=*/true, /*parse_special=*/false);
    written = ids.status();
    if (!written.ok()) return false;
    tokens.assign(ids->begin(), ids->end());
    *n_bytes += static_cast<int64_t>(text.size());
    written = file->Write(tokens);
    return written.ok();
  };
  KVL_RETURN_IF_ERROR(ForEachDocument(recipe, data_directory, take));
  return written;
}

Status WriteTasks(const SourceRecipe& recipe, uint64_t seed, const Tokenizer& tokenizer,
                  TokenFile* file, int64_t* n_bytes) {
  KVL_ASSIGN_OR_RETURN(TaskRowPacker packer,
                       TaskRowPacker::Create(recipe.tasks, recipe.context + 1, seed, &tokenizer));
  if (recipe.answers_only) packer.LearnAnswersOnly();
  std::vector<uint32_t> row;
  while (file->n_tokens() < recipe.n_tokens) {
    KVL_RETURN_IF_ERROR(packer.NextRow(&row, n_bytes));
    KVL_RETURN_IF_ERROR(file->Write(row));
  }
  return OkStatus();
}

// The files of a tokenizer, wherever it comes from.
Status SaveTokenizer(const std::string& path, const std::string& directory) {
  if (DirectoryExists(path)) return CopyTokenizer(path, directory);
  // There is nothing to copy, but the directory is made.
  KVL_RETURN_IF_ERROR(CopyTokenizer(directory, directory));
  KVL_ASSIGN_OR_RETURN(const GgufFile file, OpenGgufModel(path));
  return WriteGgufTokenizer(file, directory);
}

}  // namespace

StatusOr<CorpusRecipe> LoadCorpusRecipe(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (!json.is_object() || !json.contains("corpus") || !json["corpus"].is_object() ||
      json["corpus"].empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: no object \"corpus\" with sources", path);
  }
  CorpusRecipe recipe;
  for (const auto& [name, source] : json["corpus"].items()) {
    KVL_ASSIGN_OR_RETURN(recipe.sources[name],
                         ParseSource(source, fmt::format("{}, corpus source {}", path, name)));
  }
  return recipe;
}

Status BuildCorpus(const CorpusRecipe& recipe, const std::string& data_directory,
                   const std::string& tokenizer_path, const std::string& directory,
                   const SourceDone& on_source) {
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(tokenizer_path));
  KVL_RETURN_IF_ERROR(SaveTokenizer(tokenizer_path, directory));
  CorpusInfo info;
  info.vocab_size = tokenizer->vocab_size();
  const std::vector<int32_t> before_text = tokenizer->Tokenize("", /*add_bos=*/true);
  if (!before_text.empty()) info.bos_id = before_text.front();
  const char* extension = TokenFileBytes(info.vocab_size) == 2 ? ".u16" : ".u32";
  uint64_t seed = kFirstTaskSeed;
  for (const auto& [name, source] : recipe.sources) {
    SourceInfo& s = info.sources[name];
    s.file = name + extension;
    s.row_tokens = source.tasks.empty() ? 0 : source.context + 1;
    KVL_ASSIGN_OR_RETURN(TokenFile file,
                         TokenFile::Create(directory + "/" + s.file, info.vocab_size));
    KVL_RETURN_IF_ERROR(source.tasks.empty()
                            ? WriteText(source, data_directory, *tokenizer, &file, &s.n_bytes)
                            : WriteTasks(source, ++seed, *tokenizer, &file, &s.n_bytes));
    KVL_RETURN_IF_ERROR(file.Commit());
    s.n_tokens = file.n_tokens();
    on_source(name, s.n_tokens, s.n_bytes);
  }
  return WriteCorpusInfo(directory, info);
}

}  // namespace kvlathe

// The texts of a corpus in plain files, from which a tokenizer learns.
#include <filesystem>

#include "evaluation/tasks/task.h"
#include "io/atomic_file.h"
#include "training/corpus_building/corpus_builder.h"
#include "training/corpus_building/source_text.h"

namespace kvlathe {
namespace {

Status AppendTaskTexts(const SourceRecipe& source, int64_t max_bytes, AtomicFile* file) {
  int64_t n_bytes = 0;
  TaskOptions options;
  options.split = TaskSplit::kTrain;
  // Before there is a tokenizer, four bytes count as a token.
  const TokenCounter count = [](std::string_view text) {
    return static_cast<int>(text.size() / 4);
  };
  for (uint64_t index = 0; n_bytes < max_bytes && n_bytes < 4 * source.n_tokens; ++index) {
    for (const auto& [name, weight] : source.tasks) {
      KVL_ASSIGN_OR_RETURN(const Task* task, FindTask(name));
      KVL_ASSIGN_OR_RETURN(const TaskExample example, task->Generate(options, index, count));
      const std::string text = example.prompt + example.references.front() + example.stop;
      KVL_RETURN_IF_ERROR(file->Write(text.data(), static_cast<int64_t>(text.size())));
      n_bytes += static_cast<int64_t>(text.size());
    }
  }
  return OkStatus();
}

// Documents in turn from the beginning of the source; of a long one its beginning, so that every
// document has a part: max_bytes spread over the documents.
Status AppendDocuments(const SourceRecipe& source, const std::string& data_directory,
                       int64_t max_bytes, AtomicFile* file) {
  int64_t n_documents = 0, n_bytes = 0;
  KVL_RETURN_IF_ERROR(ForEachDocument(source, data_directory, [&](std::string_view text) {
    ++n_documents;
    n_bytes += static_cast<int64_t>(text.size());
    return true;
  }));
  const double share = n_bytes <= max_bytes ? 1.0 : static_cast<double>(max_bytes) / n_bytes;
  Status written;
  KVL_RETURN_IF_ERROR(ForEachDocument(source, data_directory, [&](std::string_view text) {
    std::string_view part = text.substr(0, static_cast<size_t>(share * text.size()));
    // Not inside a UTF-8 character.
    while (part.size() < text.size() && !part.empty() && (text[part.size()] & 0xc0) == 0x80) {
      part.remove_suffix(1);
    }
    written = file->Write(part.data(), static_cast<int64_t>(part.size()));
    if (written.ok()) written = file->Write("\n", 1);
    return written.ok();
  }));
  return written;
}

}  // namespace

StatusOr<std::vector<std::string>> WriteTrainingTexts(const CorpusRecipe& recipe,
                                                      const std::string& data_directory,
                                                      const std::string& directory,
                                                      int64_t max_bytes) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  std::vector<std::string> paths;
  for (const auto& [name, source] : recipe.sources) {
    paths.push_back(directory + "/" + name + ".txt");
    KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(paths.back()));
    KVL_RETURN_IF_ERROR(source.tasks.empty()
                            ? AppendDocuments(source, data_directory, max_bytes, &file)
                            : AppendTaskTexts(source, max_bytes, &file));
    KVL_RETURN_IF_ERROR(file.Commit());
  }
  return paths;
}

}  // namespace kvlathe

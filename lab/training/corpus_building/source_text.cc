#include "training/corpus_building/source_text.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files.h"

namespace kvlathe {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

StatusOr<std::vector<std::string>> MatchFiles(const std::string& directory,
                                              const std::string& pattern) {
  const fs::path whole = fs::path(directory) / pattern;
  std::vector<std::string> paths;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(whole.parent_path(), failed)) {
    if (fnmatch(whole.filename().c_str(), entry.path().filename().c_str(), FNM_PERIOD) == 0 &&
        entry.is_regular_file(failed)) {
      paths.push_back(entry.path().string());
    }
  }
  if (paths.empty()) {
    return Error(StatusCode::kNotFound, "{}: no such file; check --data", whole.string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// `document` with {field} replaced by the entry's strings; a string entry is the field "text".
StatusOr<std::string> FillIn(const std::string& document, const Json& entry,
                             const std::string& where) {
  std::string filled;
  for (size_t at = 0; at < document.size();) {
    const size_t open = document.find('{', at);
    const size_t close = open == std::string::npos ? open : document.find('}', open);
    if (close == std::string::npos) {
      filled += document.substr(at);
      break;
    }
    filled += document.substr(at, open - at);
    const std::string field = document.substr(open + 1, close - open - 1);
    const Json* value = nullptr;
    if (entry.is_string() && field == "text") value = &entry;
    if (entry.is_object() && entry.contains(field)) value = &entry[field];
    if (value == nullptr || !value->is_string()) {
      return Error(StatusCode::kDataLoss, "{}: no string \"{}\" in the entry", where, field);
    }
    filled += value->get<std::string>();
    at = close + 1;
  }
  return filled;
}

using TakeDocument = std::function<bool(std::string_view)>;

StatusOr<bool> ReadLines(const std::string& path, const std::string& text,
                         const std::string& document, const TakeDocument& take) {
  int line_no = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++line_no;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, line_no);
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (entry.is_discarded()) {
      return Error(StatusCode::kDataLoss, "{}: not JSON", where);
    }
    KVL_ASSIGN_OR_RETURN(const std::string filled, FillIn(document, entry, where));
    if (!take(filled)) return false;
  }
  return true;
}

// False when `take` wants no more.
StatusOr<bool> ReadDocuments(const std::string& path, const std::string& document,
                             const TakeDocument& take) {
  const std::string extension = fs::path(path).extension();
  if (extension == ".json") {
    KVL_ASSIGN_OR_RETURN(const Json entries, ReadJsonFile(path));
    if (!entries.is_array()) {
      return Error(StatusCode::kDataLoss, "{}: not an array of documents", path);
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      KVL_ASSIGN_OR_RETURN(const std::string filled,
                           FillIn(document, entries[i], fmt::format("{}, entry {}", path, i)));
      if (!take(filled)) return false;
    }
    return true;
  }
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  if (extension == ".jsonl") return ReadLines(path, text, document, take);
  return take(text);
}

}  // namespace

Status ForEachDocument(const SourceRecipe& source, const std::string& data_directory,
                       const TakeDocument& take) {
  for (const std::string& pattern : source.files) {
    KVL_ASSIGN_OR_RETURN(const std::vector<std::string> paths, MatchFiles(data_directory, pattern));
    for (const std::string& path : paths) {
      KVL_ASSIGN_OR_RETURN(const bool wants_more, ReadDocuments(path, source.document, take));
      if (!wants_more) return OkStatus();
    }
  }
  return OkStatus();
}

}  // namespace kvlathe

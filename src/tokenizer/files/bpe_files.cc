#include "tokenizer/files/bpe_files.h"

#include <algorithm>
#include <string>

namespace kvlathe {
namespace {

using nlohmann::json;

// A merge's place in the list, and what its right side loses in front.
struct MergeEntry {
  int32_t rank = 0;
  size_t prefix_bytes = 0;
};

bool AddMerge(std::string_view left, std::string_view right, const MergeEntry& entry,
              const Vocabulary& vocabulary, MergeTable* merges) {
  const auto left_id = vocabulary.Find(left);
  const auto right_id = vocabulary.Find(right);
  if (!left_id || !right_id) return false;
  if (right.size() < entry.prefix_bytes) return false;
  const auto merged_id =
      vocabulary.Find(std::string(left).append(right.substr(entry.prefix_bytes)));
  if (!merged_id) return false;
  merges->Add(*left_id, *right_id, entry.rank, *merged_id);
  return true;
}

// Tokens may themselves contain spaces; the right cut is the one whose sides are tokens.
bool AddMergeLine(std::string_view line, const MergeEntry& entry, const Vocabulary& vocabulary,
                  MergeTable* merges) {
  for (size_t cut = line.find(' ', 1); cut != std::string_view::npos;
       cut = line.find(' ', cut + 1)) {
    if (AddMerge(line.substr(0, cut), line.substr(cut + 1), entry, vocabulary, merges)) return true;
  }
  return false;
}

Status UnknownTokens(int32_t rank, std::string_view merge) {
  constexpr size_t kMaxShown = 100;
  std::string line(merge.substr(0, kMaxShown));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, ' ');
  return Error(StatusCode::kDataLoss,
               "merge {} (\"{}\") names tokens that are not in the vocabulary", rank + 1, line);
}

}  // namespace

Status AddVocabulary(const json& object, Vocabulary* vocabulary) {
  if (!object.is_object() || object.empty()) {
    return Error(StatusCode::kDataLoss, "the vocabulary is missing, empty or not an object");
  }
  vocabulary->Reserve(object.size());
  for (const auto& [text, id] : object.items()) {
    if (!id.is_number_integer()) {
      return Error(StatusCode::kDataLoss, "token \"{}\" has an id that is not an integer", text);
    }
    KVL_RETURN_IF_ERROR(vocabulary->Add(id.get<int64_t>(), text));
  }
  return OkStatus();
}

Status AddMerges(const json& list, const Vocabulary& vocabulary, MergeTable* merges,
                 size_t prefix_bytes) {
  if (!list.is_array()) return Error(StatusCode::kDataLoss, "\"merges\" is not a list");
  merges->Reserve(list.size());
  int32_t rank = 0;
  for (const json& entry : list) {
    if (entry.is_string()) {
      const auto& line = entry.get_ref<const std::string&>();
      if (!AddMergeLine(line, {rank, prefix_bytes}, vocabulary, merges))
        return UnknownTokens(rank, line);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
               entry[1].is_string()) {
      const auto& left = entry[0].get_ref<const std::string&>();
      const auto& right = entry[1].get_ref<const std::string&>();
      if (!AddMerge(left, right, {rank, prefix_bytes}, vocabulary, merges)) {
        return UnknownTokens(rank, left + " " + right);
      }
    } else {
      return Error(StatusCode::kDataLoss,
                   "merge {} is neither \"left right\" nor a pair of strings", rank + 1);
    }
    ++rank;
  }
  return OkStatus();
}

Status AddMerges(const std::vector<std::string_view>& list, const Vocabulary& vocabulary,
                 MergeTable* merges) {
  merges->Reserve(list.size());
  int32_t rank = 0;
  for (const std::string_view line : list) {
    if (!AddMergeLine(line, {rank}, vocabulary, merges)) return UnknownTokens(rank, line);
    ++rank;
  }
  return OkStatus();
}

Status AddMergeLines(std::string_view text, const Vocabulary& vocabulary, MergeTable* merges) {
  int32_t rank = 0;
  for (bool is_first = true; !text.empty(); is_first = false) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, line_end);
    text.remove_prefix(std::min(line_end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (is_first && line.starts_with("#version"))) continue;
    if (!AddMergeLine(line, {rank}, vocabulary, merges)) return UnknownTokens(rank, line);
    ++rank;
  }
  return OkStatus();
}

}  // namespace kvlathe

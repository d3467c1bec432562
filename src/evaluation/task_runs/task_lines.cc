#include "evaluation/task_runs/task_lines.h"

#include <algorithm>
#include <charconv>

#include "io/files.h"

namespace kvlathe {

using nlohmann::json;

StatusOr<std::string> TaskLine::Text(const char* field) const {
  const auto it = value.find(field);
  if (it == value.end()) return Refuse("no \"{}\"; give it as a string", field);
  if (!it->is_string()) return Refuse("\"{}\" is no string; put it in quotes", field);
  return it->get<std::string>();
}

StatusOr<std::string> TaskLine::FullText(const char* field) const {
  KVL_ASSIGN_OR_RETURN(std::string text, Text(field));
  if (Trimmed(text).empty()) return Refuse("\"{}\" is empty; give it text", field);
  return text;
}

StatusOr<std::vector<std::string>> TaskLine::Texts(const char* field) const {
  std::vector<std::string> texts;
  const auto list = value.find(field);
  if (list == value.end()) return Refuse("no \"{}\"; give it as a list of strings", field);
  if (list->is_array()) {
    for (const json& text : *list) {
      if (!text.is_string()) break;
      texts.push_back(text.get<std::string>());
    }
  }
  if (texts.empty() || texts.size() != list->size()) {
    return Refuse("\"{}\" is not a list of one or more strings", field);
  }
  return texts;
}

StatusOr<int64_t> TaskLine::Integer(const char* field) const {
  const auto it = value.find(field);
  if (it == value.end()) return Refuse("no \"{}\"; give it as a whole number", field);
  // Unsigned values beyond int64_t would change their sign.
  if (it->is_number_integer() && (!it->is_number_unsigned() || it->get<uint64_t>() <= INT64_MAX)) {
    return it->get<int64_t>();
  }
  if (it->is_string()) {
    const std::string& digits = it->get_ref<const std::string&>();
    int64_t number = 0;
    const char* end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, number);
    if (error == std::errc() && rest == end) return number;
    if (digits.empty()) {
      return Refuse("\"{}\" is empty; take a set with answers, not a test set without", field);
    }
  }
  return Refuse("\"{}\" is no whole number", field);
}

StatusOr<std::string> ReadUnpackedFile(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  for (const auto& [magic, command] : {std::pair("\x1F\x8B", "gunzip -k"), {"BZh", "bunzip2 -k"}}) {
    if (text.starts_with(magic)) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: is compressed; unpack it first ({} {}) and give the unpacked file", path,
                   command, path);
    }
  }
  return text;
}

std::string_view TakeLine(std::string_view* text) {
  const std::string_view line = text->substr(0, text->find('\n'));
  text->remove_prefix(std::min(line.size() + 1, text->size()));
  return line;
}

Status ForEachTaskLine(std::string_view path, std::string_view text,
                       const std::function<Status(const TaskLine&)>& read) {
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = TakeLine(&text);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const TaskLine parsed{path, number, json::parse(line, nullptr, /*allow_exceptions=*/false)};
    // The parser takes a NUL byte for the end of its input.
    if (!parsed.value.is_object() || line.find('\0') != std::string_view::npos) {
      return parsed.Refuse("not a JSON object; the file needs one object on every line");
    }
    KVL_RETURN_IF_ERROR(read(parsed));
  }
  return OkStatus();
}

Status ForEachTaskLine(const std::string& path,
                       const std::function<Status(const TaskLine&)>& read) {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadUnpackedFile(path));
  return ForEachTaskLine(path, text, read);
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace kvlathe

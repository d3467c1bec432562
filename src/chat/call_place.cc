#include "chat/call_place.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// Behind the JSON object or list that begins at `pos`; npos: there is none.
size_t EndOfJson(std::string_view text, size_t pos) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = pos; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// "functions.NAME:0", which templates make of a call's name and its number.
void TakeNumberedName(const std::string& text, CallPlace* place) {
  constexpr std::string_view kNamespace = "functions.";
  const std::string_view before = std::string_view(text).substr(0, place->name.begin);
  size_t end = place->name.end;
  if (!before.ends_with(kNamespace) || text[end] != ':') return;
  end = text.find_first_not_of("0123456789", end + 1);
  if (end == std::string::npos || end == place->name.end + 1) return;
  place->name = {place->name.begin - kNamespace.size(), end};
  place->format.ids_hold_names = true;
}

bool FindKeys(const Json& json, const std::string& around, CallFormat* format) {
  std::string name_key, arguments_key;
  for (const auto& [key, value] : json.items()) {
    if (value.is_string() && value.get<std::string>().find("kvl_") != std::string::npos)
      name_key = key;
    if (value.is_object() && value.contains("city")) arguments_key = key;
  }
  if (name_key.empty() || arguments_key.empty()) return false;
  format->name_key = name_key;
  format->arguments_key = arguments_key;
  format->around_key = around;
  return true;
}

// The outermost object around name and arguments.
void FindObject(const std::string& text, size_t from, CallPlace* place) {
  const size_t least = std::min(place->name.begin, place->arguments.begin);
  for (size_t pos = text.find('{', from); pos < least; pos = text.find('{', pos + 1)) {
    const size_t end = EndOfJson(text, pos);
    if (end == std::string::npos || end < std::max(place->name.end, place->arguments.end)) continue;
    const Json json = Json::parse(text.substr(pos, end - pos), nullptr, false);
    if (!json.is_object()) continue;
    if (!FindKeys(json, "", &place->format)) {
      for (const auto& [key, inner] : json.items()) {
        if (inner.is_object() && FindKeys(inner, key, &place->format)) break;
      }
    }
    place->format.is_object = !place->format.name_key.empty();
    place->object = {pos, end};
    return;
  }
}

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// `other`, in which any word stands for one that is not that of `text`: where it names the type of
// a value there are more of them.
std::string OtherWord(const std::string& text, const std::string& other) {
  size_t begin = CommonPrefix(text, other), end = CommonSuffix(text, other);
  end = std::min({end, text.size() - begin, other.size() - begin});
  while (begin > 0 && IsLetter(other[begin - 1])) --begin;
  while (end > 0 && IsLetter(other[other.size() - end])) --end;
  const std::string_view word = std::string_view(other).substr(begin, other.size() - end - begin);
  const std::string_view of_text = std::string_view(text).substr(begin, text.size() - end - begin);
  if (word.empty() || of_text.empty() || !std::ranges::all_of(word, IsLetter)) return other;
  return other.substr(0, begin) + kAnyWord + other.substr(other.size() - end);
}

// Arguments in marks, or as in Python.
std::optional<CallPlace> FindMarkedPlace(const std::string& text, size_t from,
                                         const SentCall& sent) {
  CallPlace place;
  place.name = Find(text, sent.name, from);
  if (!place.name.found()) return std::nullopt;
  const Span key = Find(text, "city", place.name.end);
  const Span city = Find(text, sent.city, key.found() ? key.end : text.size());
  const Span key2 = Find(text, "days", city.found() ? city.end : text.size());
  const Span days = Find(text, std::to_string(sent.days), key2.found() ? key2.end : text.size());
  if (!days.found()) return std::nullopt;
  // Of several names the nearest; those in front of it belong to what begins a call.
  const size_t last = text.rfind(sent.name, key.begin);
  place.name = {last, last + sent.name.size()};
  const std::string mid = text.substr(place.name.end, key.begin - place.name.end);
  const std::string to_city = text.substr(key.end, city.begin - key.end);
  const std::string to_days = text.substr(key2.end, days.begin - key2.end);
  const std::string between = text.substr(city.end, key2.begin - city.end);
  place.arguments = {key.begin, days.end};
  CallFormat& format = place.format;
  if (mid == "(" && to_days == "=" && text[days.end] == ')') {
    format.arguments = CallFormat::Arguments::kPython;
    return place;
  }
  format.arguments = CallFormat::Arguments::kTagged;
  const size_t n_begin = WholeSuffix(between, CommonSuffix(mid, between));
  format.key_begin = mid.substr(mid.size() - n_begin);
  format.key_end = to_city;
  format.value_end = between.substr(0, between.size() - n_begin);
  place.arguments.begin = key.begin - n_begin;
  if (to_city == to_days) return place;
  format.key_end_other = OtherWord(to_city, to_days);
  if (to_city.starts_with(to_days)) {
    format.text_quote = to_city.substr(to_days.size());
    format.texts_are_json = format.text_quote == "\"";
    if (between.starts_with(format.text_quote)) {
      format.value_end = format.value_end.substr(format.text_quote.size());
    }
    if (format.texts_are_json) {
      format.key_end = to_days;
      format.key_end_other.clear();
      format.text_quote.clear();
    }
  }
  return place;
}

}  // namespace

Span Find(std::string_view text, std::string_view part, size_t from) {
  const size_t begin = text.find(part, from);
  return begin == std::string_view::npos ? Span() : Span{begin, begin + part.size()};
}

size_t WholeSuffix(std::string_view text, size_t n) {
  const size_t start = text.size() - n;
  const size_t open = text.substr(0, start).rfind('<');
  if (open == std::string_view::npos || text.substr(open, start - open).find('>') != text.npos) {
    return n;
  }
  const size_t close = text.find('>', start);
  return close == std::string_view::npos ? 0 : text.size() - close - 1;
}

size_t WholePrefix(std::string_view text, size_t n) {
  const size_t open = text.substr(0, n).rfind('<');
  if (open == std::string_view::npos) return n;
  return text.substr(open, n - open).find('>') == std::string_view::npos ? open : n;
}

std::optional<CallPlace> FindCallPlace(const std::string& text, size_t from, const SentCall& sent) {
  CallPlace place;
  for (size_t pos = text.find('{', from); pos != std::string::npos; pos = text.find('{', pos + 1)) {
    const size_t end = EndOfJson(text, pos);
    if (end == std::string::npos) continue;
    const auto json = nlohmann::json::parse(text.substr(pos, end - pos), nullptr, false);
    // What is no JSON equals nothing, and differs from nothing either.
    if (!(json == nlohmann::json{{"city", sent.city}, {"days", sent.days}})) continue;
    place.arguments = {pos, end};
    break;
  }
  if (!place.arguments.found()) return FindMarkedPlace(text, from, sent);
  place.name = Find(text, sent.name, from);
  const size_t last = text.rfind(sent.name, place.arguments.begin);
  if (last != std::string::npos && last >= from) place.name = {last, last + sent.name.size()};
  if (!place.name.found()) return std::nullopt;
  TakeNumberedName(text, &place);
  FindObject(text, from, &place);
  return place;
}

}  // namespace kvlathe

#include "chat/reading/call_scanner.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvlathe {
namespace {

bool IsJsonSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// The string that a JSON text stands for; nothing for any other text.
std::optional<std::string> StringOf(const std::string& text) {
  const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

CallScanner CallScanner::OfArguments(const std::string& name) {
  CallScanner scanner;
  scanner.name_ = name;
  scanner.has_arguments_alone_ = true;
  scanner.place_ = Place::kBeforeValue;
  scanner.entry_ = Entry::kArguments;
  return scanner;
}

size_t CallScanner::Feed(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && state_ == State::kGoing) FeedByte(text[n++]);
  return n;
}

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

void CallScanner::FeedByte(char c) {
  if (in_string_) return FeedInString(c);
  if (place_ == Place::kValue) return FeedValue(c);
  if (IsJsonSpace(c)) return;
  switch (place_) {
    case Place::kBeforeObject:
      if (c != '{') return Fail();
      place_ = Place::kBeforeKey;
      return;
    case Place::kBeforeKey:
      return BeginKey(c);
    case Place::kBeforeColon:
      if (c != ':') return Fail();
      place_ = Place::kBeforeValue;
      return;
    case Place::kBeforeValue:
      return BeginValue(c);
    default:
      return BehindValue(c);
  }
}

void CallScanner::FeedInString(char c) {
  (place_ == Place::kValue && is_object_ && entry_ == Entry::kArguments ? arguments_ : text_) += c;
  if (is_escaped_) {
    is_escaped_ = false;
  } else if (c == '\\') {
    is_escaped_ = true;
  } else if (c == '"') {
    in_string_ = false;
    if (place_ == Place::kKey) {
      EndKey();
    } else if (closing_.empty()) {
      EndValue();
    }
  } else if (static_cast<unsigned char>(c) < 0x20) {
    Fail();
  }
}

void CallScanner::BeginKey(char c) {
  if (c == '}' && may_close_) return BehindValue(c);
  if (c != '"') return Fail();
  text_ = c;
  in_string_ = true;
  place_ = Place::kKey;
}

void CallScanner::EndKey() {
  const std::optional<std::string> key = StringOf(text_);
  if (!key) return Fail();
  place_ = Place::kBeforeColon;
  entry_ = Entry::kOther;
  if (*key == keys_.name) entry_ = Entry::kName;
  const bool are_parameters = keys_.arguments == "arguments" && *key == "parameters";
  if (*key == keys_.arguments || are_parameters) entry_ = Entry::kArguments;
  if (!keys_.around.empty() && *key == keys_.around && !is_inside_) entry_ = Entry::kAround;
  const bool is_again =
      (entry_ == Entry::kName && name_) || (entry_ == Entry::kArguments && has_arguments_);
  if (is_again) Fail();
}

void CallScanner::BeginValue(char c) {
  if (entry_ == Entry::kAround && c == '{') {
    is_inside_ = true;
    may_close_ = true;
    place_ = Place::kBeforeKey;
    return;
  }
  place_ = Place::kValue;
  text_.clear();
  closing_.clear();
  if (entry_ == Entry::kArguments) {
    is_object_ = c == '{';
    has_arguments_ = is_object_;
    if (!is_object_ && c != '"' && c != 'n') return Fail();
  }
  if (entry_ == Entry::kName && c != '"') return Fail();
  FeedValue(c);
}

void CallScanner::FeedValue(char c) {
  const bool is_scalar = closing_.empty() && !text_.empty();
  if (is_scalar && (c == ',' || c == '}' || IsJsonSpace(c))) {
    EndValue();
    if (state_ == State::kGoing && !IsJsonSpace(c)) BehindValue(c);
    return;
  }
  (is_object_ && entry_ == Entry::kArguments ? arguments_ : text_) += c;
  if (c == '"') {
    if (is_scalar) return Fail();
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    if (is_scalar) return Fail();
    closing_ += c == '{' ? '}' : ']';
  } else if (c == '}' || c == ']') {
    if (closing_.empty() || closing_.back() != c) return Fail();
    closing_.pop_back();
    if (closing_.empty()) EndValue();
  }
}

void CallScanner::EndValue() {
  place_ = Place::kBehindValue;
  if (entry_ == Entry::kName) {
    name_ = StringOf(text_);
    if (!name_ || name_->empty()) Fail();
  } else if (entry_ == Entry::kArguments) {
    EndArguments();
    if (has_arguments_alone_ && state_ == State::kGoing) state_ = State::kDone;
  }
  text_.clear();
}

void CallScanner::EndArguments() {
  if (is_object_) return;
  if (text_ == "null") {
    arguments_ = "{}";
  } else {
    const std::optional<std::string> inner = StringOf(text_);
    if (!inner || !inner->starts_with('{') || !nlohmann::json::accept(*inner)) return Fail();
    arguments_ = *inner;
  }
  has_arguments_ = true;
}

void CallScanner::BehindValue(char c) {
  if (c == ',') {
    place_ = Place::kBeforeKey;
    may_close_ = false;
  } else if (c == '}' && is_inside_) {
    is_inside_ = false;
    place_ = Place::kBehindValue;
  } else if (c == '}') {
    if (!name_) return Fail();
    if (!has_arguments_) arguments_ = "{}";
    has_arguments_ = true;
    state_ = State::kDone;
  } else {
    Fail();
  }
}

}  // namespace kvlathe

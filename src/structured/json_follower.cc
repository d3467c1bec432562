#include "structured/json_follower.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvlathe {
namespace {

constexpr uint32_t kLeastOfBytes[] = {0, 0, 0x80, 0x800, 0x10000};
constexpr uint32_t kMostCode = 0x10FFFF;

// What \ and a letter stand for in JSON, as far as it has to be escaped.
constexpr std::pair<char, char32_t> kShortEscapes[] = {
    {'"', '"'}, {'\\', '\\'}, {'b', '\b'}, {'f', '\f'}, {'n', '\n'}, {'r', '\r'}, {'t', '\t'}};

bool HasShortEscape(char32_t code) {
  return std::ranges::any_of(kShortEscapes,
                             [&](const auto& escape) { return escape.second == code; });
}

std::string TextOfJson(const std::string& raw) {
  const auto text = nlohmann::json::parse('"' + raw + '"', nullptr, /*allow_exceptions=*/false);
  return text.is_string() ? text.get<std::string>() : raw;
}

int TypeBitAt(uint8_t byte) {
  switch (byte) {
    case '{':
      return FollowedSchema::kObject;
    case '[':
      return FollowedSchema::kArray;
    case '"':
      return FollowedSchema::kText;
    case 't':
    case 'f':
      return FollowedSchema::kBoolean;
    case 'n':
      return FollowedSchema::kNull;
    default:
      return FollowedSchema::kNumber;
  }
}

bool IsJsonBlank(uint8_t byte) {
  return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

}  // namespace

TextWalks::TextWalks(std::shared_ptr<const FollowedSchema> schema) : schema_(std::move(schema)) {
  walks_.reserve(schema_->rules().size());
  for (const TextRule& rule : schema_->rules()) walks_.emplace_back(&rule);
}

bool TextWalks::TakesCharacter(int rule, char32_t code, TextPosition* position) {
  TextRuleWalk& walk = of(rule);
  const int place = walk.Step(position->place, code);
  if (place == TextRuleWalk::kNowhere) return false;
  position->place = place;
  ++position->n_characters;
  return walk.CanEnd(place, position->n_characters);
}

bool TextWalks::TakesByte(int rule, uint8_t byte, TextPosition* position) {
  if (position->n_left == 0) {
    if (byte < 0x80) return TakesCharacter(rule, byte, position);
    const int n_bytes = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    if (byte < 0xC2 || byte > 0xF4) return false;
    position->n_bytes = static_cast<uint8_t>(n_bytes);
    position->n_left = static_cast<uint8_t>(n_bytes - 1);
    position->code = byte & (0x7Fu >> n_bytes);
  } else {
    if ((byte & 0xC0) != 0x80) return false;
    position->code = position->code << 6 | (byte & 0x3F);
    --position->n_left;
  }
  const int n_bits = 6 * position->n_left;
  const uint32_t first = std::max(position->code << n_bits, kLeastOfBytes[position->n_bytes]);
  const uint32_t last = std::min((position->code + 1) << n_bits, kMostCode + 1) - 1;
  if (first > last || (first >= 0xD800 && last <= 0xDFFF)) return false;
  if (position->n_left == 0) return TakesCharacter(rule, position->code, position);
  return of(rule).CanEndBehind(position->place, first, last, position->n_characters);
}

JsonFollower::JsonFollower(TextWalks* walks, const std::vector<int>& values) : walks_(walks) {
  for (const int value : values) {
    for (const int shape : walks->schema().AlternativesOf(value)) value_.push_back({shape, -1, {}});
  }
}

bool JsonFollower::Push(uint8_t byte) {
  switch (place_) {
    case Place::kDone:
      return true;
    case Place::kText:
      return escape_ > 0 ? PushEscape(byte) : PushText(byte);
    case Place::kBeforeValue:
      if (IsJsonBlank(byte)) return true;
      if (byte == ']' && container_ != nullptr && !container_->is_object) return Close();
      return BeginValue(byte);
    case Place::kScalar:
      if (byte != ',' && byte != ']' && byte != '}' && !IsJsonBlank(byte)) return true;
      if (!EndValue(value_)) return false;
      return place_ == Place::kDone || Push(byte);
    case Place::kBehindValue:
      if (byte == '}' || byte == ']') return Close();
      if (byte != ',') return true;
      if (container_->is_object) {
        place_ = Place::kBeforeKey;
      } else {
        auto next = std::make_shared<Container>(*container_);
        ++next->n_items;
        container_ = std::move(next);
        place_ = Place::kBeforeValue;
      }
      return true;
    case Place::kBeforeKey:
      if (byte == '}') return Close();
      if (byte != '"') return true;
      place_ = Place::kText;
      is_key_ = keeps_raw_ = true;
      escape_ = 0;
      raw_.clear();
      return true;
    case Place::kBehindKey:
      if (byte == ':') place_ = Place::kBeforeValue;
      return true;
  }
  return true;
}

int JsonFollower::PropertyOf(const FollowedSchema::Shape& shape) const {
  if (const auto property = shape.properties.find(key_); property != shape.properties.end()) {
    return property->second;
  }
  for (const auto& [rule, value] : shape.pattern_properties) {
    if (walks_->schema().rules()[static_cast<size_t>(rule)].Takes(key_)) return value;
  }
  return shape.other_properties;
}

std::vector<JsonFollower::Candidate> JsonFollower::ValueCandidates() const {
  if (container_ == nullptr) return value_;
  const FollowedSchema& schema = walks_->schema();
  const std::vector<Candidate>& around = container_->candidates;
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < around.size(); ++i) {
    const FollowedSchema::Shape& shape = schema.shape(around[i].shape);
    const auto item = static_cast<size_t>(container_->n_items);
    int value = container_->is_object             ? PropertyOf(shape)
                : item < shape.first_items.size() ? shape.first_items[item]
                                                  : shape.other_items;
    // The grammar alone says what the only alternative may have.
    if (value == FollowedSchema::kNone && around.size() == 1) value = FollowedSchema::kAny;
    if (value == FollowedSchema::kNone) continue;
    for (const int its : schema.AlternativesOf(value)) {
      candidates.push_back({its, static_cast<int>(i), {}});
    }
  }
  return candidates;
}

bool JsonFollower::BeginValue(uint8_t byte) {
  value_ = ValueCandidates();
  const FollowedSchema& schema = walks_->schema();
  const int type = TypeBitAt(byte);
  std::erase_if(value_, [&](const Candidate& candidate) {
    return (schema.shape(candidate.shape).types & type) == 0;
  });
  if (value_.empty()) return false;
  if (byte == '"') {
    place_ = Place::kText;
    is_key_ = false;
    escape_ = 0;
    raw_.clear();
    keeps_raw_ = value_.size() > 1;
    return true;
  }
  if (byte != '{' && byte != '[') {
    place_ = Place::kScalar;
    return true;
  }
  auto inner = std::make_shared<Container>();
  inner->is_object = byte == '{';
  inner->candidates = std::move(value_);
  inner->around = std::move(container_);
  container_ = std::move(inner);
  value_.clear();
  place_ = byte == '{' ? Place::kBeforeKey : Place::kBeforeValue;
  return true;
}

// `left` are the alternatives that the value turned out to be: what is around it keeps those that
// one of them belongs to.
bool JsonFollower::EndValue(const std::vector<Candidate>& left) {
  if (left.empty()) return false;
  if (container_ == nullptr) {
    place_ = Place::kDone;
    return true;
  }
  place_ = Place::kBehindValue;
  if (container_->candidates.size() == 1) return true;
  auto next = std::make_shared<Container>(*container_);
  next->candidates.clear();
  for (size_t i = 0; i < container_->candidates.size(); ++i) {
    const bool stays = std::ranges::any_of(
        left, [&](const Candidate& candidate) { return candidate.parent == static_cast<int>(i); });
    if (stays) next->candidates.push_back(container_->candidates[i]);
  }
  container_ = std::move(next);
  return true;
}

bool JsonFollower::Close() {
  if (container_ == nullptr) return true;
  const std::shared_ptr<const Container> closed = std::move(container_);
  container_ = closed->around;
  std::vector<Candidate> left = closed->candidates;
  if (closed->is_object && left.size() > 1) {
    std::erase_if(left, [&](const Candidate& candidate) {
      const auto& required = walks_->schema().shape(candidate.shape).required;
      return std::ranges::any_of(required, [&](const std::string& key) {
        return std::ranges::find(closed->keys, key) == closed->keys.end();
      });
    });
  }
  return EndValue(left);
}

template <typename Takes>
bool JsonFollower::KeepRuled(const Takes& takes) {
  if (is_key_) return true;
  std::erase_if(value_, [&](Candidate& candidate) {
    const int rule = RuleOf(candidate);
    return rule != FollowedSchema::kNone && !takes(rule, &candidate.position);
  });
  return !value_.empty();
}

bool JsonFollower::PushText(uint8_t byte) {
  if (byte == '"') return EndText();
  if (keeps_raw_) raw_ += static_cast<char>(byte);
  if (byte != '\\') {
    return KeepRuled(
        [&](int rule, TextPosition* position) { return walks_->TakesByte(rule, byte, position); });
  }
  escape_ = 1;
  // In a text with a rule an escape stands only for what has to be escaped.
  return KeepRuled([&](int rule, TextPosition* position) {
    TextRuleWalk& walk = walks_->of(rule);
    const int64_t n = position->n_characters;
    return walk.CanEndBehind(position->place, 0, 0x1F, n) ||
           walk.CanEndBehind(position->place, '"', '"', n) ||
           walk.CanEndBehind(position->place, '\\', '\\', n);
  });
}

bool JsonFollower::PushEscape(uint8_t byte) {
  if (keeps_raw_) raw_ += static_cast<char>(byte);
  const int at = escape_;
  if (at == 1) {
    escaped_ = 0;
    escape_ = byte == 'u' ? 2 : 0;
    if (byte != 'u') {
      return KeepRuled([&](int rule, TextPosition* position) {
        for (const auto& [letter, code] : kShortEscapes) {
          if (letter == static_cast<char>(byte)) {
            return walks_->TakesCharacter(rule, code, position);
          }
        }
        return false;
      });
    }
  } else {
    const uint8_t digit = byte <= '9' ? byte - '0' : (byte | 0x20) - 'a' + 10;
    escaped_ = escaped_ << 4 | digit;
    escape_ = at == 5 ? 0 : at + 1;
  }
  if (escape_ == 0) {
    return KeepRuled([&](int rule, TextPosition* position) {
      return escaped_ <= 0x1F && !HasShortEscape(escaped_) &&
             walks_->TakesCharacter(rule, escaped_, position);
    });
  }
  // A control character that has no shorter escape must still be there to come.
  const int n_bits = 4 * (6 - escape_);
  return KeepRuled([&](int rule, TextPosition* position) {
    for (char32_t code = 0; code <= 0x1F; ++code) {
      if (HasShortEscape(code) || code >> n_bits != escaped_) continue;
      if (walks_->of(rule).CanEndBehind(position->place, code, code, position->n_characters)) {
        return true;
      }
    }
    return false;
  });
}

bool JsonFollower::EndText() {
  if (is_key_) {
    key_ = TextOfJson(raw_);
    place_ = Place::kBehindKey;
    if (container_->candidates.size() > 1) {
      auto next = std::make_shared<Container>(*container_);
      next->keys.push_back(key_);
      container_ = std::move(next);
    }
    return true;
  }
  const FollowedSchema& schema = walks_->schema();
  std::optional<std::string> text;
  std::vector<Candidate> left = std::move(value_);
  value_.clear();
  std::erase_if(left, [&](const Candidate& candidate) {
    const FollowedSchema::Shape& shape = schema.shape(candidate.shape);
    if (shape.rule != FollowedSchema::kNone) {
      const TextPosition& position = candidate.position;
      return position.n_left > 0 ||
             !walks_->of(shape.rule).MayEnd(position.place, position.n_characters);
    }
    if (!shape.is_listed || !keeps_raw_) return false;
    if (!text) text = TextOfJson(raw_);
    return !shape.texts.contains(*text);
  });
  return EndValue(left);
}

std::vector<JsonFollower::RuledText> JsonFollower::RulesOfText() const {
  std::vector<RuledText> rules;
  if (place_ != Place::kText || is_key_) return rules;
  for (const Candidate& candidate : value_) {
    const int rule = RuleOf(candidate);
    if (rule == FollowedSchema::kNone) return {};
    rules.push_back({rule, candidate.position});
  }
  return rules;
}

void JsonFollower::ForgetPlaces() {
  const bool is_in_value = place_ == Place::kText && !is_key_;
  for (int rule = 0; rule < static_cast<int>(walks_->schema().rules().size()); ++rule) {
    std::vector<int*> kept;
    for (Candidate& candidate : value_) {
      if (is_in_value && RuleOf(candidate) == rule) kept.push_back(&candidate.position.place);
    }
    walks_->of(rule).Forget(kept);
  }
}

}  // namespace kvlathe

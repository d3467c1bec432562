// Text -> stages as they were typed.
#include <algorithm>
#include <optional>

#include "kv/spec/given_stages.h"

namespace kvlathe {
namespace {

bool IsLetter(char c) { return c >= 'a' && c <= 'z'; }
bool IsNameCharacter(char c) {
  return IsLetter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
bool IsValueCharacter(char c) { return IsNameCharacter(c) || c == '.' || c == '+'; }

std::string StageNames() {
  std::string names;
  for (const StageInfo& stage : AllStages()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", stage.name);
  }
  return names;
}

std::string KeyNames(const StageInfo& stage) {
  std::string names;
  for (const KeyInfo* key : stage.keys) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", key->name);
  }
  return names;
}

class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : text_(text) {}

  StatusOr<std::vector<GivenStage>> Parse() {
    KVL_RETURN_IF_ERROR(ParseText());
    return std::move(given_);
  }

 private:
  template <typename... Args>
  Status ErrorAt(size_t offset, fmt::format_string<Args...> format, Args&&... args) const {
    return SpecErrorAt(text_, offset, format, std::forward<Args>(args)...);
  }

  bool AtEnd() const { return pos_ == text_.size(); }
  bool Accept(char c) {
    if (AtEnd() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  // What stands here, for "expected ..., not ...".
  std::string Here() const { return AtEnd() ? "the end" : QuoteSpec(text_.substr(pos_, 1)); }
  std::string_view TakeWhile(bool (*is_wanted)(char)) {
    const size_t begin = pos_;
    while (!AtEnd() && is_wanted(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  Status ParseText();
  Status ParseStage();
  Status ParseKeys(GivenStage* stage);
  Status ParseKey(GivenStage* stage);

  std::string_view text_;
  size_t pos_ = 0;
  std::vector<GivenStage> given_;
};

Status SpecParser::ParseText() {
  if (text_.size() > Spec::kMaxTextBytes) {
    return ErrorAt(Spec::kMaxTextBytes, "a spec has at most {} bytes", Spec::kMaxTextBytes);
  }
  do {
    KVL_RETURN_IF_ERROR(ParseStage());
  } while (Accept('+'));
  if (AtEnd()) return OkStatus();
  const bool has_keys = text_[pos_ - 1] == ')';
  return ErrorAt(pos_, "expected {}'+' or the end, not {}", has_keys ? "" : "'(', ", Here());
}

Status SpecParser::ParseStage() {
  const size_t offset = pos_;
  if (AtEnd() || !IsLetter(text_[pos_])) {
    return ErrorAt(offset, "expected a stage, not {}; none, or stages of {}", Here(), StageNames());
  }
  const std::string_view name = TakeWhile(IsNameCharacter);
  if (name == "none") return ErrorAt(offset, "none stands alone, without keys or other stages");
  const StageInfo* info = FindStage(name);
  if (info == nullptr) {
    return ErrorAt(offset, "unknown stage {}; none, or stages of {}", QuoteSpec(name),
                   StageNames());
  }
  GivenStage stage{info, offset, {}};
  if (Accept('(')) KVL_RETURN_IF_ERROR(ParseKeys(&stage));
  given_.push_back(std::move(stage));
  return OkStatus();
}

Status SpecParser::ParseKeys(GivenStage* stage) {
  do {
    KVL_RETURN_IF_ERROR(ParseKey(stage));
  } while (Accept(','));
  if (Accept(')')) return OkStatus();
  return ErrorAt(pos_, "expected ',' or ')', not {}", Here());
}

Status SpecParser::ParseKey(GivenStage* stage) {
  const StageInfo& info = *stage->info;
  const size_t key_offset = pos_;
  if (AtEnd() || !IsLetter(text_[pos_])) {
    return ErrorAt(pos_, "expected a key, not {}; {} takes {}", Here(), info.name, KeyNames(info));
  }
  const std::string_view name = TakeWhile(IsNameCharacter);
  const KeyInfo* key = info.FindKey(name);
  if (key == nullptr) {
    return ErrorAt(key_offset, "unknown key {}; {} takes {}", QuoteSpec(name), info.name,
                   KeyNames(info));
  }
  if (stage->Find(name) != nullptr) return ErrorAt(key_offset, "key '{}' given twice", name);
  if (!Accept('=')) return ErrorAt(pos_, "expected '=', not {}", Here());
  const size_t value_offset = pos_;
  const std::string_view text = TakeWhile(IsValueCharacter);
  if (text.empty()) {
    return ErrorAt(pos_, "expected a value, not {}; {} is {}", Here(), name, AllowedValues(*key));
  }
  const std::optional<SpecValue> value = ParseValue(*key, text);
  if (!value) {
    return ErrorAt(value_offset, "{} is not allowed; {} is {}", QuoteSpec(text), name,
                   AllowedValues(*key));
  }
  stage->keys.push_back({key, *value, key_offset});
  return OkStatus();
}

}  // namespace

std::string QuoteSpec(std::string_view text) {
  constexpr size_t kMaxBytes = 120;
  std::string quoted = "'";
  for (char c : text.substr(0, kMaxBytes)) {
    if (c >= ' ' && c < 127) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + (text.size() > kMaxBytes ? "...'" : "'");
}

StatusOr<std::vector<GivenStage>> ParseGivenStages(std::string_view text) {
  return SpecParser(text).Parse();
}

StatusOr<Spec> Spec::ParseWith(std::string_view text, std::optional<double> question) {
  Spec spec;
  spec.text_ = std::string(text);
  if (text == "none") return spec;
  KVL_ASSIGN_OR_RETURN(std::vector<GivenStage> given, ParseGivenStages(text));
  KVL_ASSIGN_OR_RETURN(spec.stages_, ResolveStages(text, std::move(given), question));
  return spec;
}

StatusOr<Spec> Spec::Parse(std::string_view text) { return ParseWith(text, std::nullopt); }

StatusOr<Spec> Spec::ParseQuestion(std::string_view text, double accuracy) {
  return ParseWith(text, accuracy);
}

}  // namespace kvlathe

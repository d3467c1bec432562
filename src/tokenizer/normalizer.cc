#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

utf8proc_option_t OptionsOf(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

void AppendNormalized(UnicodeForm form, std::string_view run, std::string* out) {
  utf8proc_uint8_t* normalized = nullptr;
  const auto n_bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                   static_cast<utf8proc_ssize_t>(run.size()), &normalized, OptionsOf(form));
  if (n_bytes < 0) {
    out->append(run);
    return;
  }
  out->append(reinterpret_cast<const char*>(normalized), static_cast<size_t>(n_bytes));
  std::free(normalized);
}

// Unicode promises that canonical forms take at most 3 times the bytes of UTF-8, compatibility
// forms 11 times (https://www.unicode.org/faq/normalization.html).
double GrowthOf(const Normalizer::Step& step) {
  if (const auto* form = std::get_if<UnicodeForm>(&step)) {
    return *form == UnicodeForm::kNfc || *form == UnicodeForm::kNfd ? 3 : 11;
  }
  if (const auto* prepend = std::get_if<PrependStep>(&step)) {
    return 1 + static_cast<double>(prepend->prefix.size());
  }
  if (const auto* replace = std::get_if<ReplaceStep>(&step)) return replace->growth();
  // Matches may be empty, one between any two characters and one at the end.
  if (const auto* replace = std::get_if<ReplaceMatchesStep>(&step)) {
    return 1 + 2 * static_cast<double>(replace->content.size());
  }
  const auto* character = std::get_if<CharacterStep>(&step);
  return character != nullptr && *character == CharacterStep::kLowercase ? 2 : 1;
}

bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// ASCII is normal in every form, and a boundary before an ASCII character is a boundary of the
// form, so only non-ASCII stretches are rewritten, each with the one character before it that a
// combining mark may change.
std::string ToForm(UnicodeForm form, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    size_t stretch = pos;
    while (stretch < text.size() && IsAscii(text[stretch])) ++stretch;
    if (stretch == text.size()) {
      out.append(text.substr(pos));
      break;
    }
    size_t end = stretch;
    while (end < text.size() && !IsAscii(text[end])) ++end;
    size_t begin = stretch > pos ? stretch - 1 : stretch;
    out.append(text.substr(pos, begin - pos));
    while (begin < end) {
      const size_t run_end = EndOfWellFormedRun(text.substr(0, end), begin);
      AppendNormalized(form, text.substr(begin, run_end - begin), &out);
      begin = EndOfIllFormedRun(text.substr(0, end), run_end);
      out.append(text.substr(run_end, begin - run_end));
    }
    pos = end;
  }
  return out;
}

// How many of the text's bytes are left of it in a Unicode form, at least: all ASCII characters
// that no mark follows, and of other bytes one in twelve. A character of up to 4 bytes has a
// decomposition of 1 byte or more, and a composition is at least a third of that.
int64_t MinBytesInForm(std::string_view text) {
  constexpr int64_t kMaxShrinkage = 12;
  int64_t n_kept = 0, n_others = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_kept = IsAscii(text[i]) && (i + 1 == text.size() || IsAscii(text[i + 1]));
    ++(is_kept ? n_kept : n_others);
  }
  return n_kept + n_others / kMaxShrinkage;
}

// Calls `change` with the code of each character, which returns what stands for it, or nothing to
// keep it. Ill-formed bytes stay.
template <typename Change>
std::string ChangeCharacters(std::string_view text, Change change) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    const std::string_view bytes = text.substr(pos, static_cast<size_t>(c.n_bytes));
    pos += bytes.size();
    if (c.state != Utf8Char::State::kWhole || !change(c.code, &out)) out += bytes;
  }
  return out;
}

bool AppendLowercase(char32_t code, std::string* out) {
  constexpr char32_t kDottedCapitalI = 0x130;
  if (code == kDottedCapitalI) {
    *out += "i\u0307";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
  }
  return true;
}

bool IsMark(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

// The rules of SentencePiece's "nmt".
bool AppendNmt(char32_t code, std::string* out) {
  const auto within = [&](char32_t first, char32_t last) { return code >= first && code <= last; };
  const bool vanishes = within(0x1, 0x8) || code == 0xB || within(0xE, 0x1F) || code == 0x7F ||
                        code == 0x8F || code == 0x9F;
  if (vanishes) return true;
  const bool is_space = code == 0x9 || code == 0xA || code == 0xC || code == 0xD ||
                        code == 0x1680 || within(0x200B, 0x200F) || within(0x2028, 0x2029) ||
                        code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
  if (is_space) out->push_back(' ');
  return is_space;
}

std::string Changed(CharacterStep step, std::string_view text) {
  switch (step) {
    case CharacterStep::kLowercase:
      return ChangeCharacters(text, AppendLowercase);
    case CharacterStep::kStripAccents:
      return ChangeCharacters(text, [](char32_t code, std::string*) { return IsMark(code); });
    case CharacterStep::kNmt:
      return ChangeCharacters(text, AppendNmt);
  }
  return std::string(text);
}

std::string Stripped(const StripStep& step, std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    const auto next = pos + static_cast<size_t>(c.n_bytes);
    if (c.state != Utf8Char::State::kWhole || !IsUnicodeSpace(c.code)) {
      begin = std::min(begin, pos);
      end = next;
    }
    pos = next;
  }
  if (!step.left) begin = 0;
  if (!step.right) end = text.size();
  return std::string(begin < end ? text.substr(begin, end - begin) : "");
}

// Expressions see well-formed text; ill-formed bytes stand between two such texts.
std::string WithMatchesReplaced(const ReplaceMatchesStep& step, std::string_view text,
                                RegexScratch* scratch) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = EndOfWellFormedRun(text, begin);
    const std::string_view run = text.substr(begin, end - begin);
    size_t pos = 0;
    Regex::Match match;
    RegexMatches matches(step.regex, run, scratch);
    while (!run.empty() && matches.Next(&match)) {
      out.append(run.substr(pos, match.begin - pos)).append(step.content);
      pos = match.end;
    }
    out.append(run.substr(pos));
    begin = EndOfIllFormedRun(text, end);
    out.append(text.substr(end, begin - end));
  }
  return out;
}

std::string Applied(const Normalizer::Step& step, std::string text, RegexScratch* scratch) {
  if (const auto* form = std::get_if<UnicodeForm>(&step)) return ToForm(*form, text);
  if (const auto* prepend = std::get_if<PrependStep>(&step)) {
    return text.empty() ? text : prepend->prefix + text;
  }
  if (const auto* replace = std::get_if<ReplaceStep>(&step)) {
    return ReplaceAll(text, replace->pattern, replace->content);
  }
  if (const auto* replace = std::get_if<ReplaceMatchesStep>(&step)) {
    return WithMatchesReplaced(*replace, text, scratch);
  }
  if (const auto* strip = std::get_if<StripStep>(&step)) return Stripped(*strip, text);
  return Changed(std::get<CharacterStep>(step), text);
}

// Whether it leaves out or shortens what a bound of a text's tokens would count.
bool MayDrop(const Normalizer::Step& step) {
  return std::holds_alternative<ReplaceMatchesStep>(step) ||
         std::holds_alternative<StripStep>(step) || std::holds_alternative<CharacterStep>(step);
}

}  // namespace

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t pos = 0;
  for (size_t hit; (hit = text.find(pattern, pos)) != std::string_view::npos;) {
    out.append(text.substr(pos, hit - pos)).append(content);
    pos = hit + pattern.size();
  }
  out.append(text.substr(pos));
  return out;
}

Status Normalizer::AddStep(Step step) {
  if (steps_.size() == kMaxSteps) {
    return Error(StatusCode::kUnimplemented, "more than {} normalizer steps", kMaxSteps);
  }
  KVL_RETURN_IF_ERROR(growth_.Add(GrowthOf(step), "a normalizer"));
  steps_.push_back(std::move(step));
  return OkStatus();
}

std::string Normalizer::Apply(std::string_view text, RegexScratch* scratch) const {
  std::string out(text);
  for (const Step& step : steps_) out = Applied(step, std::move(out), scratch);
  return out;
}

int64_t Normalizer::MinBytes(std::string_view text) const {
  if (std::ranges::any_of(steps_, MayDrop)) return 0;
  const auto is_form = [](const Step& step) { return std::holds_alternative<UnicodeForm>(step); };
  const auto n_forms = std::ranges::count_if(steps_, is_form);
  if (n_forms > 1) return 0;  // a second one may join what the first has kept apart
  double n_bytes = static_cast<double>(n_forms == 0 ? std::ssize(text) : MinBytesInForm(text));
  for (const Step& step : steps_) {
    const auto* replace = std::get_if<ReplaceStep>(&step);
    if (replace != nullptr) n_bytes *= std::min(replace->growth(), 1.0);
  }
  return static_cast<int64_t>(n_bytes);
}

}  // namespace kvlathe

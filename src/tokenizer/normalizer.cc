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
  return std::get<ReplaceStep>(step).growth();
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

std::string Normalizer::Apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      out = ToForm(*form, out);
    } else if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      if (!out.empty()) out.insert(0, prepend->prefix);
    } else {
      const auto& replace = std::get<ReplaceStep>(step);
      out = ReplaceAll(out, replace.pattern, replace.content);
    }
  }
  return out;
}

int64_t Normalizer::MinBytes(std::string_view text) const {
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

#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include <pcre2.h>

namespace kvlathe {
namespace {

// White_Space of the Unicode database, in the brackets of a class.
constexpr std::string_view kWhiteSpace = R"(\t-\r\x85\p{Z})";

// Spells \s and \S out: PCRE2 counts U+180E as a space, the expression engines that tokenizers are
// written for do not. (\S inside a class has no such spelling and keeps PCRE2's meaning.)
std::string WithUnicodeSpaces(std::string_view pattern) {
  std::string out;
  out.reserve(pattern.size() * 2);
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's' && in_class) {
        out += kWhiteSpace;
      } else if ((escaped == 's' || escaped == 'S') && !in_class) {
        out.append(escaped == 's' ? "[" : "[^").append(kWhiteSpace).append("]");
      } else {
        out.append({c, escaped});
      }
      continue;
    }
    out.push_back(c);
    if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (pattern.substr(i + 1).starts_with('^')) out.push_back(pattern[++i]);
      // A bracket right after the opening one is a member of the class.
      if (pattern.substr(i + 1).starts_with(']')) out.push_back(pattern[++i]);
    }
  }
  return out;
}

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{32} << 10, size_t{64} << 20, nullptr);

  State() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;

  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string spelled = WithUnicodeSpaces(pattern);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    return Error(StatusCode::kDataLoss, "regular expression \"{}\": {} at position {}", pattern,
                 reinterpret_cast<const char*>(message), offset);
  }
  auto owner = std::make_shared<const Code>(code);
  // Without a JIT for this machine or pattern pcre2_match interprets.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(owner));
}

StatusOr<Regex> Regex::CompileLiteral(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_ascii_symbol = static_cast<unsigned char>(c) < 0x80 && !(c >= '0' && c <= '9') &&
                                 !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
    if (is_ascii_symbol) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return Compile(pattern);
}

bool Regex::Find(std::string_view text, size_t start, RegexScratch* scratch, Match* match) const {
  RegexScratch::State& state = *scratch->state_;
  const int n_groups =
      pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, state.data, state.context);
  // 0: more groups than the scratch has room for; the whole match is there all the same.
  if (n_groups < 0) return false;
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
  // \K can move the reported beginning past the end or before `start`.
  if (range[0] < start || range[1] <= range[0]) return false;
  *match = {range[0], range[1]};
  return true;
}

}  // namespace kvlathe

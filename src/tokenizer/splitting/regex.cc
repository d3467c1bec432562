#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/splitting/regex.h"

#include <pcre2.h>

#include <utility>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr uint32_t kMaxSteps = 10'000'000;
constexpr uint32_t kMaxHeapKiB = 512 << 10;  // of the interpreter
constexpr size_t kMaxJitStackBytes = size_t{64} << 20;
constexpr size_t kMaxShownBytes = 200;

std::string ErrorText(int error) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(error, message, sizeof(message));
  return reinterpret_cast<const char*>(message);
}

std::string Shown(std::string_view pattern) {
  if (pattern.size() <= kMaxShownBytes) return std::string(pattern);
  size_t end = kMaxShownBytes;
  while (end > 0 && (static_cast<unsigned char>(pattern[end]) & 0xC0) == 0x80) --end;
  return std::string(pattern.substr(0, end)) + "...";
}

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{32} << 10, kMaxJitStackBytes, nullptr);
  Status failure;

  State() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMaxSteps);
    pcre2_set_heap_limit(context, kMaxHeapKiB);
  }
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

Status RegexScratch::TakeFailure() { return std::exchange(state_->failure, OkStatus()); }

bool RegexScratch::failed() const { return !state_->failure.ok(); }

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string pattern;  // as an error shows it

  Code(pcre2_code* compiled, std::string_view text) : code(compiled), pattern(Shown(text)) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

StatusOr<Regex> Regex::Compile(std::string_view pattern, RegexSyntax syntax) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error(StatusCode::kUnimplemented, "a regular expression of {} bytes; at most {} are {}",
                 pattern.size(), kMaxPatternBytes, "supported");
  }
  if (EndOfWellFormedRun(pattern, 0) != pattern.size()) {
    return Error(StatusCode::kDataLoss, "a regular expression is not UTF-8");
  }
  const StatusOr<std::string> spelled = SpellForPcre2(pattern, syntax);
  if (!spelled.ok()) {
    return Error(spelled.status().code(), "regular expression \"{}\": {}", Shown(pattern),
                 MessageOf(spelled.status()));
  }
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  options |= syntax == RegexSyntax::kOniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled->data()), spelled->size(),
                                   options, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return Error(StatusCode::kDataLoss, "regular expression \"{}\": {}", Shown(pattern),
                 ErrorText(error));
  }
  auto owner = std::make_shared<const Code>(code, pattern);
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
  if (!state.failure.ok()) return false;
  ++scratch->n_searches_;
  const auto search = [&](uint32_t options) {
    return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                       PCRE2_NO_UTF_CHECK | options, state.data, state.context);
  };
  int n_groups = search(0);
  // A group that repeats a million times needs more than the stack of compiled code.
  if (n_groups == PCRE2_ERROR_JIT_STACKLIMIT) n_groups = search(PCRE2_NO_JIT);
  if (n_groups == PCRE2_ERROR_NOMATCH) return false;
  if (n_groups < 0) {
    state.failure = Error(StatusCode::kInvalidArgument,
                          "the tokenizer's regular expression \"{}\" gives up at byte {} of {}: {}",
                          code_->pattern, start, text.size(), ErrorText(n_groups));
    return false;
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
  *match = {range[0], range[1]};
  return true;
}

bool RegexMatches::Next(Regex::Match* match) {
  while (pos_ <= text_.size() && regex_.Find(text_, pos_, scratch_, match)) {
    const bool is_repeated = match->begin == match->end && match->end == last_end_;
    if (!is_repeated) {
      pos_ = last_end_ = match->end;
      return true;
    }
    if (pos_ >= text_.size()) return false;
    pos_ += static_cast<size_t>(ReadAsciiOrUtf8(text_, pos_).n_bytes);
  }
  return false;
}

}  // namespace kvlathe

#include "tokenizer/gguf/gguf_pre_tokenizer.h"

#include <fmt/ranges.h>

#include <utility>
#include <vector>

namespace kvlathe {
namespace {

// Cased letters, as the DeepSeek LLM tokenizer lists them.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)";
constexpr std::string_view kDeepseekPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
// Chinese, Japanese, Korean and what lies between U+0800 and them.
constexpr std::string_view kDeepseekCjk = R"([\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+)";

Status AddSplits(const std::vector<std::string_view>& patterns, PreTokenizer* out) {
  for (const std::string_view pattern : patterns) {
    KVL_ASSIGN_OR_RETURN(SplitStep split, IsolatedSplit(pattern));
    KVL_RETURN_IF_ERROR(out->AddStep(std::move(split)));
  }
  return OkStatus();
}

Status AddGpt2Split(PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(SplitStep split, Gpt2Split());
  return out->AddStep(std::move(split));
}

StatusOr<GgufPreTokenizer> Published(std::string_view name) {
  GgufPreTokenizer result;
  KVL_ASSIGN_OR_RETURN(result.pre_tokenizer, NamedPreTokenizer(name));
  return result;
}

// What llama.cpp does for files that name no pre-tokenizer.
StatusOr<GgufPreTokenizer> Default() {
  GgufPreTokenizer result;
  KVL_RETURN_IF_ERROR(AddSplits({R"([\p{P}$+<=>^~|]+)"}, &result.pre_tokenizer));
  KVL_RETURN_IF_ERROR(AddGpt2Split(&result.pre_tokenizer));
  KVL_RETURN_IF_ERROR(AddSplits({R"(\p{N}+)", "[0-9][0-9][0-9]"}, &result.pre_tokenizer));
  return result;
}

StatusOr<GgufPreTokenizer> Gpt2() { return Published("gpt2"); }
StatusOr<GgufPreTokenizer> Falcon() { return Published("falcon"); }

StatusOr<GgufPreTokenizer> Llama3() {
  KVL_ASSIGN_OR_RETURN(GgufPreTokenizer result, Published("llama3"));
  result.ignore_merges = true;
  result.adds_bos = true;
  return result;
}

StatusOr<GgufPreTokenizer> Qwen2() {
  KVL_ASSIGN_OR_RETURN(GgufPreTokenizer result, Published("qwen2"));
  KVL_RETURN_IF_ERROR(result.normalizer.AddStep(UnicodeForm::kNfc));
  return result;
}

// Each digit alone, then GPT-2's expression.
StatusOr<GgufPreTokenizer> SingleDigits() {
  GgufPreTokenizer result;
  KVL_ASSIGN_OR_RETURN(SplitStep digits, DigitSplit(/*individual_digits=*/true));
  KVL_RETURN_IF_ERROR(result.pre_tokenizer.AddStep(std::move(digits)));
  KVL_RETURN_IF_ERROR(AddGpt2Split(&result.pre_tokenizer));
  return result;
}

StatusOr<GgufPreTokenizer> CommandR() {
  KVL_ASSIGN_OR_RETURN(GgufPreTokenizer result, SingleDigits());
  KVL_RETURN_IF_ERROR(result.normalizer.AddStep(UnicodeForm::kNfc));
  return result;
}

StatusOr<GgufPreTokenizer> DeepseekLlm() {
  GgufPreTokenizer result;
  KVL_RETURN_IF_ERROR(AddSplits(
      {R"([\r\n])", kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)", kDeepseekCjk, R"(\p{N})"},
      &result.pre_tokenizer));
  return result;
}

struct Named {
  std::string_view name;
  StatusOr<GgufPreTokenizer> (*make)();
};

constexpr Named kPreTokenizers[] = {
    {"default", Default},     {"gpt-2", Gpt2},
    {"gpt2", Gpt2},           {"phi-2", Gpt2},
    {"llama-bpe", Llama3},    {"llama3", Llama3},
    {"llama-v3", Llama3},     {"qwen2", Qwen2},
    {"falcon", Falcon},       {"smollm", SingleDigits},
    {"refact", SingleDigits}, {"starcoder", SingleDigits},
    {"command-r", CommandR},  {"deepseek-llm", DeepseekLlm},
};

}  // namespace

StatusOr<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Named& named : kPreTokenizers) {
    if (named.name == name) return named.make();
    known.push_back(named.name);
  }
  return Error(StatusCode::kUnimplemented, "unknown pre-tokenizer \"{}\"; known are {}", name,
               fmt::join(known, ", "));
}

}  // namespace kvlathe

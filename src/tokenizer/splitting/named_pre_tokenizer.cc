#include "tokenizer/splitting/named_pre_tokenizer.h"

#include <fmt/ranges.h>

#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/near_words.h"

namespace kvlathe {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Llama 3's, with white space in runs of powers of two.
constexpr std::string_view kJais2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|)"
    R"(\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr std::string_view kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen2's without the endings of English, which Turkish writes otherwise.
constexpr std::string_view kUfakzeka = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|)"
    R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|)"
                                      R"( ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
// o200k_base and o200k_harmony of OpenAI.
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKimiK2 =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Hangul, punctuation of Chinese, Bopomofo, and Chinese with Japanese.
constexpr std::string_view kYoutuScripts =
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|)"
    R"([\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C})"
    R"(\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|)"
    R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekV3Cjk =
    R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSpark = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                                    R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|)"
                                    R"([\r\n]|\s+(?!\S)|\s+)";
// Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese, and Korean.
constexpr std::string_view kAfmoeScripts =
    R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF})"
    R"(\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF})"
    R"(\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)";
constexpr std::string_view kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
constexpr std::string_view kLines = R"([^\n]+|[\n]+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
// Groups of three from the end.
constexpr std::string_view kDigitGroups = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
constexpr std::string_view kWordDigitGroups = R"(\d{1,3}(?=(?:\d{3})*\b))";
constexpr std::string_view kDigitGroupCuts = R"((?=(\d{3})+(?!\d)))";

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

enum Traits : uint8_t {
  kPlain = 0,
  kIgnoresMerges = 1,
  kAddsBos = 2,
  kComposes = 4,
  kCharacters = 8
};

struct Known {
  std::string_view names;  // with spaces between them
  std::array<std::string_view, 6> patterns;
  int traits = kPlain;
};

constexpr Known kKnown[] = {
    // What llama.cpp does for files that name no pre-tokenizer.
    {"default", {R"([\p{P}$+<=>^~|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert "
     "jina-v1-en jina-v2-code roberta-bpe jais exaone4 trillion granite-docling",
     {kGpt2Pattern}},
    // GPT-NeoX and its descendants compose what they read.
    {"mpt olmo", {kGpt2Pattern}, kComposes},
    {"smollm starcoder refact codeshell exaone minerva-7b mellum2", {kDigit, kGpt2Pattern}},
    {"command-r", {kDigit, kGpt2Pattern}, kComposes},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {kLlama3},
     kIgnoresMerges | kAddsBos},
    {"dbrx smaug-bpe chatglm-bpe", {kLlama3}},
    {"glm4 glm5", {kLlama3}, kIgnoresMerges},
    {"jais-2", {kJais2}},
    {"minicpm5", {kThreeDigits, kMiniCpm5}, kIgnoresMerges},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez", {kQwen2}, kComposes},
    {"qwen35", {kQwen35}, kComposes},
    {"stablelm2 hunyuan solar-open grok-2", {kQwen2}},
    {"ufakzeka", {kUfakzeka}},
    {"laguna", {kLines, kQwen2}},
    {"seed-coder", {kSeedCoder}},
    {"bailingmoe bailingmoe2 llada-moe", {kBailing}},
    {"exaone-moe", {kExaoneMoe}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {kO200k}},
    {"granite-embed-multi-97m", {kO200k}, kIgnoresMerges},
    {"tiny_aya cohere2moe", {kWordDigitGroups, kO200k}},
    {"tekken", {kTekken}, kIgnoresMerges | kAddsBos},
    {"kimi-k2", {kKimiK2}},
    {"youtu", {kYoutuScripts, kYoutu}, kIgnoresMerges},
    {"deepseek-llm",
     {R"([\r\n])", kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)", kDeepseekCjk, kDigit}},
    {"deepseek-coder", {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCjk, kDigit}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {kThreeDigits, kDeepseekV3Cjk, kDeepseekV3}},
    {"spark2_5", {kThreeDigits, kDeepseekV3Cjk, kSpark, kDigit}},
    {"afmoe", {kDigitGroups, kAfmoeScripts, kDeepseekV3}},
    {"superbpe", {R"(\p{N}+)", kDigitGroupCuts}},
    {"poro-chat bloom gpt3-finnish", {kBloom}},
    {"viking", {kBloom, kDigit}},
    {"chameleon",
     {R"(<sentinel:[0-9]+>)", R"((IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z)", R"(([\t\n]|    |  ))",
      kDigit, R"([\p{P}!-/:-@\[-`{-~])", kGpt2Pattern},
     kAddsBos},
    {"gemma4 granite-embed-multi-311m", {kLines}, kCharacters | kAddsBos},
    {"sarvam-moe", {kLines}, kCharacters},
};
constexpr std::string_view kFalcon = "falcon";

// Falcon's last steps see bytes as the letters that stand for them.
Status AddFalconSteps(PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(PreTokenizer::Step punctuation,
                       PunctuationSplit(SplitBehavior::kContiguous));
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(punctuation)));
  KVL_ASSIGN_OR_RETURN(PreTokenizer::Step words, Gpt2Split());
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(words)));
  KVL_RETURN_IF_ERROR(out->AddStep(ByteAlphabetStep{}));
  KVL_ASSIGN_OR_RETURN(PreTokenizer::Step digits, DigitSplit(/*individual_digits=*/false));
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(digits)));
  KVL_ASSIGN_OR_RETURN(PreTokenizer::Step triples, IsolatedSplit("[0-9][0-9][0-9]"));
  return out->AddStep(std::move(triples));
}

bool HasName(const Known& known, std::string_view name) {
  for (const absl::string_view one :
       absl::StrSplit(absl::string_view(known.names.data(), known.names.size()), ' ')) {
    if (std::string_view(one.data(), one.size()) == name) return true;
  }
  return false;
}

StatusOr<NamedPreTokenizer> Make(const Known& known) {
  NamedPreTokenizer named;
  for (const std::string_view pattern : known.patterns) {
    if (pattern.empty()) break;
    KVL_ASSIGN_OR_RETURN(PreTokenizer::Step step, IsolatedSplit(pattern));
    KVL_RETURN_IF_ERROR(named.pre_tokenizer.AddStep(std::move(step)));
    named.patterns.push_back(pattern);
  }
  named.composes = (known.traits & kComposes) != 0;
  named.byte_level = (known.traits & kCharacters) == 0;
  named.ignore_merges = (known.traits & kIgnoresMerges) != 0;
  named.adds_bos = (known.traits & kAddsBos) != 0;
  if (named.composes) KVL_RETURN_IF_ERROR(named.normalizer.AddStep(UnicodeForm::kNfc));
  if (!named.byte_level) {
    KVL_RETURN_IF_ERROR(named.normalizer.AddStep(ReplaceStep{" ", "\u2581"}));
  }
  return named;
}

}  // namespace

std::vector<std::string> PreTokenizerNames() {
  std::vector<std::string> names = {std::string(kFalcon)};
  for (const Known& known : kKnown) {
    for (const absl::string_view name :
         absl::StrSplit(absl::string_view(known.names.data(), known.names.size()), ' ')) {
      names.emplace_back(name.data(), name.size());
    }
  }
  return names;
}

StatusOr<NamedPreTokenizer> FindPreTokenizer(std::string_view name) {
  if (name == kFalcon) {
    NamedPreTokenizer named;
    KVL_RETURN_IF_ERROR(AddFalconSteps(&named.pre_tokenizer));
    return named;
  }
  for (const Known& known : kKnown) {
    if (HasName(known, name)) return Make(known);
  }
  constexpr size_t kMostNear = 5;
  const std::vector<std::string> near = NearWords(name, PreTokenizerNames(), kMostNear);
  return Error(StatusCode::kUnimplemented, "unknown pre-tokenizer \"{}\"; {}", name,
               near.empty()
                   ? "none that is known has a name near it (docs/tokenizers.md lists them)"
                   : fmt::format("near are {}", fmt::join(near, ", ")));
}

}  // namespace kvlathe

// tiktoken rank files: a token's rank is its id, and two neighbours merge if their bytes together
// are a token, lowest rank first. A piece that is a token is that token.
#include <algorithm>
#include <array>
#include <charconv>

#include "absl/strings/escaping.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/files/rank_merges.h"
#include "tokenizer/loaders.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

struct SpecialToken {
  int32_t id;
  std::string_view content;
};
// Those of Llama 3 that all its releases agree on; ids above 128000 without a name stay reserved.
constexpr int32_t kLlama3BaseTokens = 128000;
constexpr std::array<SpecialToken, 5> kLlama3Specials = {{{128000, "<|begin_of_text|>"},
                                                          {128001, "<|end_of_text|>"},
                                                          {128006, "<|start_header_id|>"},
                                                          {128007, "<|end_header_id|>"},
                                                          {128009, "<|eot_id|>"}}};

std::string_view NextLine(std::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size());
  std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// "IQ== 0"; false if the line is anything else.
bool ParseLine(std::string_view line, std::string* bytes, int64_t* rank) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos) return false;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + space + 1, end, *rank);
  if (error != std::errc() || stop != end) return false;
  return absl::Base64Unescape(absl::string_view(line.data(), space), bytes) && !bytes->empty();
}

Status AddRanks(std::string_view contents, Vocabulary* vocabulary) {
  std::string bytes;
  int64_t rank = 0;
  for (int line_number = 1; !contents.empty(); ++line_number) {
    const std::string_view line = NextLine(&contents);
    if (line.empty()) continue;
    if (!ParseLine(line, &bytes, &rank) || bytes.size() > kMaxRankedBytes) {
      return Error(StatusCode::kDataLoss, "line {} is not \"base64 rank\"", line_number);
    }
    KVL_RETURN_IF_ERROR(vocabulary->Add(rank, BytesToAlphabet(bytes)));
  }
  return OkStatus();
}

Status AddLlama3Specials(TokenizerParts* parts) {
  std::vector<AddedToken> specials;
  for (const SpecialToken& token : kLlama3Specials) {
    specials.push_back({.id = token.id,
                        .content = std::string(token.content),
                        .normalized = false,
                        .special = true});
  }
  return MergeAddedTokens(specials, &parts->vocabulary, &parts->added_tokens);
}

}  // namespace

bool LooksLikeTiktoken(std::string_view contents) {
  std::string bytes;
  int64_t rank = 0;
  return ParseLine(NextLine(&contents), &bytes, &rank);
}

StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& path,
                                                  std::string_view contents,
                                                  const ModelSettings& settings,
                                                  const std::string& pre) {
  TokenizerParts parts;
  parts.byte_level = parts.decoder.byte_level = true;
  parts.bpe.ignore_merges = true;
  KVL_ASSIGN_OR_RETURN(NamedPreTokenizer named, FindPreTokenizer(pre.empty() ? "llama3" : pre));
  parts.pre_tokenizer = std::move(named.pre_tokenizer);
  parts.normalizer = std::move(named.normalizer);
  KVL_RETURN_IF_ERROR(InFile(path, AddRanks(contents, &parts.vocabulary)));
  AddRankMerges(parts.vocabulary, &parts.bpe.merges);
  if (parts.vocabulary.size() == kLlama3BaseTokens) {
    KVL_RETURN_IF_ERROR(InFile(path, AddLlama3Specials(&parts)));
    parts.bos_id = 128000;
    parts.eos_id = 128001;
  }
  KVL_RETURN_IF_ERROR(InFile(
      path, MergeAddedTokens(settings.added_tokens, &parts.vocabulary, &parts.added_tokens)));
  if (const auto bos_id = ResolveBos(settings, parts.vocabulary)) parts.bos_id = bos_id;
  if (const auto eos_id = ResolveEos(settings, parts.vocabulary)) parts.eos_id = eos_id;
  if (settings.add_bos_token.value_or(true) && parts.bos_id) parts.prefix_ids = {*parts.bos_id};
  return std::make_unique<TextTokenizer>(std::move(parts));
}

}  // namespace kvlathe

#include "tokenizer/text_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tokenizer/byte_alphabet.h"

namespace kvlathe {
namespace {

std::string BytesOf(const DecoderSpec& decoder, std::string_view text) {
  if (decoder.byte_level) {
    // A token outside the alphabet stands for itself.
    return AlphabetToBytes(text).value_or(std::string(text));
  }
  if (decoder.byte_fallback) {
    if (const std::optional<char> byte = ByteOfToken(text)) return std::string(1, *byte);
  }
  std::string bytes(text);
  for (const auto& [pattern, content] : decoder.replacements) {
    bytes = ReplaceAll(bytes, pattern, content);
  }
  return bytes;
}

// Whether all text is in some token, but for bytes that have none.
bool KeepsText(const TokenizerParts& parts) {
  if (parts.pre_tokenizer.drops_text() || parts.bpe.has_affixes()) return false;
  return parts.byte_level || parts.bpe.byte_fallback ||
         (parts.bpe.unk_id.has_value() && !parts.bpe.fuse_unk);
}

// Whether a byte may be in no token: byte-level vocabularies often lack those that UTF-8 never has.
bool MayVanish(const TokenizerParts& parts, unsigned char byte) {
  const char c = static_cast<char>(byte);
  if (parts.byte_level) return !parts.vocabulary.Find(BytesToAlphabet({&c, 1}));
  return parts.bpe.byte_fallback && !parts.vocabulary.Find(fmt::format("<0x{:02X}>", byte));
}

}  // namespace

std::optional<char> ByteOfToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  if (error != std::errc() || end != text.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

TextTokenizer::TextTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  if (KeepsText(parts_)) BoundTokenBytes();
  if (parts_.bpe.has_affixes()) {
    model_ =
        std::make_unique<AffixBpe>(std::move(parts_.bpe), parts_.byte_level, &parts_.vocabulary);
  } else if (parts_.byte_level) {
    model_ = std::make_unique<ByteBpe>(std::move(parts_.bpe), &parts_.vocabulary);
  } else {
    model_ = std::make_unique<CharBpe>(std::move(parts_.bpe), &parts_.vocabulary);
  }
  RegexScratch scratch;
  // Hugging Face ranks special tokens before others where two patterns are equal.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : parts_.added_tokens) {
      if (token.special != special) continue;
      if (token.normalized) {
        normalized_matcher_.Add(token, parts_.normalizer.Apply(token.content, &scratch));
      } else {
        raw_matcher_.Add(token, token.content);
      }
    }
  }
  IndexBytes();
}

void TextTokenizer::IndexBytes() {
  const int n_ids = parts_.vocabulary.size();
  bytes_of_id_.resize(n_ids);
  is_special_.resize(n_ids);
  for (int id = 0; id < n_ids; ++id) {
    bytes_of_id_[id] = BytesOf(parts_.decoder, parts_.vocabulary.TextOf(id));
  }
  for (const AddedToken& token : parts_.added_tokens) {
    bytes_of_id_[token.id] = token.content;
    is_special_[token.id] = token.special;
  }
}

void TextTokenizer::BoundTokenBytes() {
  for (int byte = 0; byte < 256; ++byte) {
    may_vanish_[byte] = MayVanish(parts_, static_cast<unsigned char>(byte));
  }
  // What a normalizer writes may be such a byte, whatever the text has.
  const bool some_vanish = std::ranges::find(may_vanish_, true) != may_vanish_.end();
  if (some_vanish && !parts_.normalizer.empty()) return;
  RegexScratch scratch;
  size_t longest = 4;  // an unknown character
  for (int id = 0; id < parts_.vocabulary.size(); ++id) {
    const std::string_view text = parts_.vocabulary.TextOf(id);
    const std::optional<std::string> bytes =
        parts_.byte_level ? AlphabetToBytes(text) : std::nullopt;
    longest = std::max(longest, bytes ? bytes->size() : text.size());
  }
  for (const AddedToken& token : parts_.added_tokens) {
    longest = std::max(longest, token.content.size());
    if (token.normalized) {
      longest = std::max(longest, parts_.normalizer.Apply(token.content, &scratch).size());
    }
    strips_spaces_ |= token.lstrip || token.rstrip;
  }
  max_token_bytes_ = static_cast<int64_t>(longest);
}

int64_t TextTokenizer::MinTokens(std::string_view text) const {
  if (max_token_bytes_ == 0) return 0;
  int64_t n_bytes = parts_.normalizer.MinBytes(text);
  if (strips_spaces_) n_bytes -= CountSpaceBytes(text);
  n_bytes -= std::ranges::count_if(
      text, [&](char c) { return may_vanish_[static_cast<unsigned char>(c)]; });
  return std::max<int64_t>(n_bytes, 0) / max_token_bytes_;
}

StatusOr<std::vector<int32_t>> TextTokenizer::TryTokenizeMarked(
    std::string_view text, bool add_bos, std::span<const TextRange> plain) const {
  std::vector<int32_t> ids;
  if (add_bos) ids = parts_.prefix_ids;
  ids.reserve(ids.size() + text.size() / 4);
  const ScratchPool::Lease scratch(&scratches_);
  raw_matcher_.Split(text, plain, [&](std::optional<int32_t> id, size_t begin, size_t end) {
    if (id) {
      ids.push_back(*id);
    } else {
      AppendSegment(text.substr(begin, end - begin), begin == 0, RangesWithin(plain, begin, end),
                    scratch.get(), &ids);
    }
  });
  KVL_RETURN_IF_ERROR(scratch.get()->regex.TakeFailure());
  return ids;
}

void TextTokenizer::AppendSegment(std::string_view segment, bool is_text_start,
                                  std::span<const TextRange> plain, TokenizeScratch* scratch,
                                  std::vector<int32_t>* ids) const {
  std::string normalized;
  std::vector<TextRange> all;
  if (!parts_.normalizer.empty()) {
    normalized = parts_.normalizer.Apply(segment, &scratch->regex);
    // Ranges of the raw text say nothing of the normalised one, so that with any of them no special
    // token that is searched for here is one.
    if (!plain.empty()) all = {{0, normalized.size()}};
    plain = all;
    segment = normalized;
  }
  normalized_matcher_.Split(
      segment, plain, [&](std::optional<int32_t> id, size_t begin, size_t end) {
        if (id) {
          ids->push_back(*id);
        } else {
          AppendText(segment.substr(begin, end - begin), is_text_start && begin == 0, scratch, ids);
        }
      });
}

void TextTokenizer::AppendText(std::string_view text, bool is_text_start, TokenizeScratch* scratch,
                               std::vector<int32_t>* ids) const {
  const bool is_kept = !is_text_start && TextMemo::Takes(text);
  if (is_kept && scratch->texts.AppendKnown(text, ids)) return;
  const size_t n_before = ids->size();
  parts_.pre_tokenizer.Split(text, is_text_start, &scratch->regex, [&](std::string_view piece) {
    model_->AppendTokens(piece, scratch, ids);
  });
  // What an expression gave up on has no ids.
  if (is_kept && !scratch->regex.failed())
    scratch->texts.Remember(text, std::span(*ids).subspan(n_before));
}

std::string TextTokenizer::TokenBytes(int32_t id, bool keep_special) const {
  if (id < 0 || id >= vocab_size() || (is_special_[id] && !keep_special)) return {};
  return bytes_of_id_[id];
}

std::string TextTokenizer::Detokenize(std::span<const int32_t> ids, bool keep_special) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (is_special_[id] && !keep_special)) continue;
    text += bytes_of_id_[id];
  }
  if (parts_.decoder.strips_leading_space && text.starts_with(' ')) text.erase(0, 1);
  if (parts_.decoder.strips_trailing_space && text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace kvlathe

#include "tokenizer/sentencepiece/sentencepiece_tokenizer.h"

#include <algorithm>

#include "tokenizer/loaders.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/text_tokenizer.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMetaspace = "\u2581";

// Appended to a serialised ModelProto this merges into its normalizer_spec (field 3) and sets
// add_dummy_prefix (field 3 there) to false: protocol buffers merge a message that comes twice.
constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

// ASCII graphic characters and the quotes, dashes and dots U+2010 to U+2027: what no normalisation
// joins with a neighbour.
bool IsPlainAt(std::string_view text, size_t pos) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (pos >= text.size()) return false;
  if (at(pos) < 0x80) return at(pos) > 0x20 && at(pos) < 0x7F;
  return text.size() - pos >= 3 && at(pos) == 0xE2 && at(pos + 1) == 0x80 && at(pos + 2) >= 0x90 &&
         at(pos + 2) <= 0xA7;
}

bool IsPlainBefore(std::string_view text, size_t pos) {
  if (pos == 0) return false;
  const bool is_ascii = static_cast<unsigned char>(text[pos - 1]) < 0x80;
  return is_ascii ? IsPlainAt(text, pos - 1) : pos >= 3 && IsPlainAt(text, pos - 3);
}

}  // namespace

StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(
    std::string_view serialized_model, const ModelSettings& settings) {
  auto tokenizer = std::unique_ptr<SentencePieceTokenizer>(new SentencePieceTokenizer);
  tokenizer->serialized_model_ = std::string(serialized_model);
  std::string reason;
  tokenizer->library_ = SentencePieceLibrary::Load(serialized_model, &reason);
  if (tokenizer->library_ == nullptr) {
    return Error(StatusCode::kDataLoss, "neither a SentencePiece model ({}) nor a tiktoken file",
                 reason);
  }
  KVL_RETURN_IF_ERROR(tokenizer->IndexPieces(settings));
  tokenizer->IndexCuts();
  tokenizer->BoundTokenBytes();
  tokenizer->ResolveBosAndEos(settings);
  return tokenizer;
}

Status SentencePieceTokenizer::IndexPieces(const ModelSettings& settings) {
  using Kind = SentencePieceLibrary::PieceKind;
  const int n_pieces = library_->n_pieces();
  std::vector<AddedToken> added_tokens;
  id_of_byte_.fill(library_->unk_id());
  bytes_of_id_.resize(n_pieces);
  for (int id = 0; id < n_pieces; ++id) {
    const std::string& piece = library_->PieceOf(id);
    const Kind kind = library_->KindOf(id);
    KVL_RETURN_IF_ERROR(vocabulary_.Add(id, piece));
    bytes_of_id_[id] = ReplaceAll(piece, kMetaspace, " ");
    if (kind == Kind::kControl || kind == Kind::kUnknown) {
      added_tokens.push_back({.id = id, .content = piece, .special = true});
    } else if (kind == Kind::kByte) {
      const std::optional<char> byte = ByteOfToken(piece);
      if (!byte) return Error(StatusCode::kDataLoss, "byte piece \"{}\" is not <0xNN>", piece);
      id_of_byte_[static_cast<unsigned char>(*byte)] = id;
      bytes_of_id_[id] = std::string(1, *byte);
    }
  }
  KVL_RETURN_IF_ERROR(MergeAddedTokens(settings.added_tokens, &vocabulary_, &added_tokens));
  bytes_of_id_.resize(vocabulary_.size());
  is_special_.resize(vocabulary_.size());
  for (const AddedToken& token : added_tokens) {
    matcher_.Add(token, token.content);
    bytes_of_id_[token.id] = token.content;
    is_special_[token.id] = token.special;
  }
  return OkStatus();
}

// A text may be cut at a single space between ASCII characters if no piece reaches across it: the
// word after the space then gets back, as the space added in front of a text, what was cut. Found
// by trying, because the library does not tell its settings.
void SentencePieceTokenizer::IndexCuts() {
  const std::vector<int32_t> probe = library_->Tokenize("a");
  adds_space_ = !probe.empty() && library_->PieceOf(probe.front()).starts_with(kMetaspace);
  can_cut_after_.fill(adds_space_ && library_->HasPiece(kMetaspace));
  const std::vector<int32_t> newline_probe = library_->Tokenize("a\nb");
  newline_is_byte_ = id_of_byte_['\n'] != library_->unk_id() &&
                     std::count(newline_probe.begin(), newline_probe.end(), id_of_byte_['\n']) == 1;
  for (int id = 0; id < library_->n_pieces(); ++id) {
    const std::string& piece = library_->PieceOf(id);
    for (size_t pos = 1; (pos = piece.find(kMetaspace, pos)) != std::string::npos; ++pos) {
      can_cut_after_[static_cast<unsigned char>(piece[pos - 1])] = false;
    }
    newline_is_byte_ &= piece.find('\n') == std::string::npos;
  }
}

// Found by trying, as the cuts are. What published normalizers drop, shorten or join is in the
// probe: control characters, double and other spaces, ligatures, wide letters, marks, and a
// character that no vocabulary has.
void SentencePieceTokenizer::BoundTokenBytes() {
  for (int id = 0; id < vocabulary_.size(); ++id) {
    max_token_bytes_ = std::max(max_token_bytes_, vocabulary_.TextOf(id).size());
  }
  constexpr std::string_view kProbe =
      "a\x01  \t\u00A0\u200B\u3000\uFB01\uFF21e\u0301\u1100\u1161\u2126\uFEFF\U0010FFFD\n b";
  std::string kept;
  for (const int32_t id : library_->Tokenize(kProbe)) kept += bytes_of_id_[id];
  keeps_all_ =
      kept == (adds_space_ ? " " : "") + std::string(kProbe) && !matcher_.swallows_spaces();
  for (char c = '!'; c <= '~'; ++c) {
    const std::vector<int32_t> ids = library_->Tokenize({&c, 1});
    is_kept_[static_cast<unsigned char>(c)] = !ids.empty() && ids.back() != library_->unk_id();
  }
}

int64_t SentencePieceTokenizer::MinTokens(std::string_view text) const {
  int64_t n_bytes = std::ssize(text);
  if (!keeps_all_) {
    n_bytes = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool has_mark = i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) >= 0x80;
      if (is_kept_[static_cast<unsigned char>(text[i])] && !has_mark) ++n_bytes;
    }
  }
  return n_bytes / static_cast<int64_t>(max_token_bytes_);
}

void SentencePieceTokenizer::ResolveBosAndEos(const ModelSettings& settings) {
  bos_id_ = ResolveBos(settings, vocabulary_);
  eos_id_ = ResolveEos(settings, vocabulary_);
  if (!bos_id_ && !settings.has_no_bos && library_->bos_id() >= 0) bos_id_ = library_->bos_id();
  if (!eos_id_ && !settings.has_no_eos && library_->eos_id() >= 0) eos_id_ = library_->eos_id();
  const std::string& tokenizer_class = settings.tokenizer_class;
  add_bos_ = settings.add_bos_token.value_or(tokenizer_class.empty() ||
                                             tokenizer_class.starts_with("LlamaTokenizer"));
}

const SentencePieceLibrary& SentencePieceTokenizer::MidTextLibrary() const {
  std::call_once(mid_text_once_, [&] {
    std::string reason;
    mid_text_library_ =
        SentencePieceLibrary::Load(serialized_model_ + std::string(kNoDummyPrefix), &reason);
  });
  return mid_text_library_ != nullptr ? *mid_text_library_ : *library_;
}

StatusOr<std::vector<int32_t>> SentencePieceTokenizer::TryTokenizeMarked(
    std::string_view text, bool add_bos, std::span<const TextRange> plain) const {
  std::vector<int32_t> ids;
  if (add_bos && add_bos_ && bos_id_) ids.push_back(*bos_id_);
  ids.reserve(ids.size() + text.size() / 4);
  const ScratchPool::Lease scratch(&scratches_);
  WordMemo* memo = &scratch.get()->memo;
  matcher_.Split(text, plain, [&](std::optional<int32_t> id, size_t begin, size_t end) {
    if (id) {
      ids.push_back(*id);
    } else {
      AppendSegment(text.substr(begin, end - begin), memo, &ids);
    }
  });
  return ids;
}

void SentencePieceTokenizer::AppendSegment(std::string_view segment, WordMemo* memo,
                                           std::vector<int32_t>* ids) const {
  for (size_t pos = 0; pos < segment.size();) {
    const size_t well_formed_end = EndOfWellFormedRun(segment, pos);
    if (well_formed_end > pos) {
      AppendText(segment.substr(pos, well_formed_end - pos), pos == 0, memo, ids);
    }
    pos = EndOfIllFormedRun(segment, well_formed_end);
    for (const char c : segment.substr(well_formed_end, pos - well_formed_end)) {
      ids->push_back(id_of_byte_[static_cast<unsigned char>(c)]);
    }
  }
}

bool SentencePieceTokenizer::CanCutAtSpace(std::string_view text, size_t pos) const {
  return IsPlainBefore(text, pos) && IsPlainAt(text, pos + 1) &&
         can_cut_after_[static_cast<unsigned char>(text[pos - 1])];
}

// White space at the ends of a piece of text may be dropped by the model, so there must be none.
bool SentencePieceTokenizer::CanCutAtNewline(std::string_view text, size_t pos) const {
  const bool left_is_safe = IsPlainBefore(text, pos) || (pos > 0 && text[pos - 1] == '\n');
  return newline_is_byte_ && left_is_safe &&
         (IsPlainAt(text, pos + 1) || text.substr(pos + 1).starts_with('\n'));
}

void SentencePieceTokenizer::AppendText(std::string_view text, bool is_segment_start,
                                        WordMemo* memo, std::vector<int32_t>* ids) const {
  size_t word_begin = 0;
  Follows follows = is_segment_start ? Follows::kSpace : Follows::kOther;
  for (size_t pos = 1; pos + 1 < text.size(); ++pos) {
    const bool cuts_space = text[pos] == ' ' && CanCutAtSpace(text, pos);
    const bool cuts_newline = text[pos] == '\n' && CanCutAtNewline(text, pos);
    if (!cuts_space && !cuts_newline) continue;
    AppendWord(text.substr(word_begin, pos - word_begin), follows, memo, ids);
    if (cuts_newline) ids->push_back(id_of_byte_['\n']);
    follows = cuts_space ? Follows::kSpace : Follows::kOther;
    word_begin = pos + 1;
  }
  AppendWord(text.substr(word_begin), follows, memo, ids);
}

void SentencePieceTokenizer::AppendWord(std::string_view word, Follows follows, WordMemo* memo,
                                        std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  const bool is_mid_text = adds_space_ && follows == Follows::kOther;
  // The word with what stands before it, so that both kinds share one memo.
  std::string key(1, is_mid_text ? '\n' : ' ');
  key += word;
  if (memo->AppendKnown(key, ids)) return;
  const std::vector<int32_t> word_ids =
      is_mid_text ? MidTextLibrary().Tokenize(word) : library_->Tokenize(word);
  memo->Remember(key, word_ids);
  ids->insert(ids->end(), word_ids.begin(), word_ids.end());
}

std::string SentencePieceTokenizer::TokenBytes(int32_t id, bool keep_special) const {
  if (id < 0 || id >= vocab_size() || (is_special_[id] && !keep_special)) return {};
  return bytes_of_id_[id];
}

std::string SentencePieceTokenizer::Detokenize(std::span<const int32_t> ids,
                                               bool keep_special) const {
  std::string text;
  for (const int32_t id : ids) text += TokenBytes(id, keep_special);
  if (adds_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                       std::string_view contents,
                                                       const ModelSettings& settings) {
  auto tokenizer = SentencePieceTokenizer::Create(contents, settings);
  if (!tokenizer.ok()) return InFile(path, tokenizer.status());
  return *std::move(tokenizer);
}

}  // namespace kvlathe

#include "tokenizer/gguf/gguf_sentencepiece.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/text_map.h"
#include "tokenizer/text_tokenizer.h"

namespace kvlathe {
namespace {

using TextSet = absl::flat_hash_set<std::string_view, TextHash, std::equal_to<>>;

constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kSpaceMark = "\u2581";
constexpr int kNBytes = 256;

// The wire format of protocol buffers: a field's number and type, then its value.
constexpr int kVarint = 0;
constexpr int kLengthDelimited = 2;
constexpr int kFixed32 = 5;

void AppendVarint(uint64_t value, std::string* out) {
  for (; value > 0x7F; value >>= 7) out->push_back(static_cast<char>((value & 0x7F) | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendNumber(int field, uint64_t value, std::string* out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | kVarint, out);
  AppendVarint(value, out);
}

void AppendFloat(int field, float value, std::string* out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | kFixed32, out);
  std::array<char, sizeof(value)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(value));
  out->append(bytes.data(), bytes.size());
}

void AppendText(int field, std::string_view text, std::string* out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | kLengthDelimited, out);
  AppendVarint(text.size(), out);
  out->append(text);
}

// sentencepiece_model.proto: ModelProto.pieces
void AppendPiece(std::string_view piece, float score, GgufTokenType type, std::string* scratch,
                 std::string* model) {
  scratch->clear();
  AppendText(1, piece, scratch);
  AppendFloat(2, score, scratch);
  AppendNumber(3, static_cast<uint64_t>(type), scratch);
  AppendText(1, *scratch, model);
}

// ModelProto.trainer_spec and ModelProto.normalizer_spec
void AppendSpecs(bool has_bytes, bool adds_space, std::string* model) {
  constexpr uint64_t kBpe = 2;
  std::string trainer;
  AppendNumber(3, kBpe, &trainer);
  AppendNumber(35, has_bytes, &trainer);
  AppendText(2, trainer, model);
  std::string normalizer;
  AppendText(1, "identity", &normalizer);
  AppendNumber(3, adds_space, &normalizer);
  AppendNumber(4, 0, &normalizer);  // extra white space stays
  AppendNumber(5, 1, &normalizer);  // spaces are written as U+2581
  AppendText(3, normalizer, model);
}

// The library wants exactly one unknown token.
Status SettleUnknown(const GgufFile& file, GgufTokens* tokens) {
  std::vector<int> unknown;
  for (int id = 0; id < tokens->size(); ++id) {
    if (tokens->types[id] == GgufTokenType::kUnknown) unknown.push_back(id);
  }
  KVL_ASSIGN_OR_RETURN(const auto named, ReadGgufTokenId(file, "tokenizer.ggml.unknown_token_id",
                                                         tokens->size(), std::nullopt));
  if (unknown.empty() && !named) {
    return GgufKeyError(file, kGgufTypesKey, "no token has type 2 (unknown)");
  }
  const int kept = unknown.size() != 1 && named ? *named : unknown.front();
  for (const int id : unknown) tokens->types[id] = GgufTokenType::kControl;
  tokens->types[kept] = GgufTokenType::kUnknown;
  return OkStatus();
}

// Either all bytes have a token <0xNN> or none has.
StatusOr<bool> CheckBytes(const GgufFile& file, const GgufTokens& tokens) {
  std::array<bool, kNBytes> has_byte{};
  int n_bytes = 0;
  for (int id = 0; id < tokens.size(); ++id) {
    if (tokens.types[id] != GgufTokenType::kByte) continue;
    const std::optional<char> byte = ByteOfToken(tokens.texts[id]);
    if (!byte || std::exchange(has_byte[static_cast<unsigned char>(*byte)], true)) {
      return GgufKeyError(file, kGgufTypesKey,
                          "token {} has type 6 (byte), but is no byte of its own", id);
    }
    ++n_bytes;
  }
  if (n_bytes != 0 && n_bytes != kNBytes) {
    return GgufKeyError(file, kGgufTypesKey, "{} tokens have type 6 (byte), not all 256", n_bytes);
  }
  return n_bytes > 0;
}

// Scores are floats, in rare files integers.
StatusOr<std::vector<float>> ReadScores(const GgufFile& file, int n_tokens) {
  std::vector<float> scores;
  const GgufValue* value = file.FindValue(kScoresKey);
  if (value != nullptr && std::holds_alternative<std::vector<int64_t>>(*value)) {
    const auto& integers = std::get<std::vector<int64_t>>(*value);
    scores.assign(integers.begin(), integers.end());
  } else {
    KVL_ASSIGN_OR_RETURN(const std::vector<double>* numbers, file.Numbers(kScoresKey));
    if (numbers != nullptr) scores.assign(numbers->begin(), numbers->end());
  }
  if (scores.size() != static_cast<size_t>(n_tokens)) {
    return GgufKeyError(file, kScoresKey, "{} scores for {} tokens", scores.size(), n_tokens);
  }
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!std::isfinite(scores[id])) {
      return GgufKeyError(file, kScoresKey, "token {} has the score {}", id, scores[id]);
    }
  }
  return scores;
}

StatusOr<TextSet> TextsOf(const GgufFile& file, const GgufTokens& tokens) {
  TextSet texts;
  texts.reserve(tokens.texts.size());
  for (int id = 0; id < tokens.size(); ++id) {
    if (!texts.insert(tokens.texts[id]).second) {
      const auto first = std::ranges::find(tokens.texts, tokens.texts[id]);
      return GgufKeyError(file, "tokenizer.ggml.tokens", "tokens {} and {} are equal",
                          first - tokens.texts.begin(), id);
    }
  }
  return texts;
}

// User-defined tokens with spaces are left to the library, which sees spaces as U+2581. All others
// are matched before it, because a text that follows one begins like a text of its own.
bool IsMatchedByLibrary(std::string_view text, std::string_view escaped, const TextSet& texts) {
  const bool is_taken = escaped != text && texts.contains(escaped);
  return escaped.find(kSpaceMark) != std::string_view::npos && !is_taken &&
         escaped.find('\0') == std::string_view::npos;
}

// The pieces of the model, and the tokens that are none of its business.
void AddPieces(const std::vector<float>& scores, const TextSet& texts, GgufSentencePiece* model) {
  const GgufTokens& tokens = model->tokens;
  std::string scratch;
  for (int id = 0; id < tokens.size(); ++id) {
    std::string piece(tokens.texts[id]);
    GgufTokenType type = tokens.types[id];
    if (type == GgufTokenType::kUndefined) type = GgufTokenType::kNormal;
    if (tokens.IsAdded(id)) {
      const std::string escaped = ReplaceAll(piece, " ", kSpaceMark);
      if (type == GgufTokenType::kUserDefined && IsMatchedByLibrary(piece, escaped, texts)) {
        piece = escaped;
      } else {
        model->added_tokens.push_back(tokens.AddedTokenOf(id));
        if (type == GgufTokenType::kUserDefined) type = GgufTokenType::kControl;
      }
    }
    AppendPiece(piece, scores[id], type, &scratch, &model->serialized);
  }
}

}  // namespace

StatusOr<GgufSentencePiece> ReadGgufSentencePiece(const GgufFile& file) {
  GgufSentencePiece result;
  KVL_ASSIGN_OR_RETURN(result.tokens, ReadGgufTokens(file, /*default_bos=*/1, /*default_eos=*/2));
  GgufTokens& tokens = result.tokens;
  KVL_RETURN_IF_ERROR(SettleUnknown(file, &tokens));
  KVL_ASSIGN_OR_RETURN(const bool has_bytes, CheckBytes(file, tokens));
  KVL_ASSIGN_OR_RETURN(const std::vector<float> scores, ReadScores(file, tokens.size()));
  KVL_ASSIGN_OR_RETURN(const bool adds_space, file.BoolOr("tokenizer.ggml.add_space_prefix", true));
  KVL_ASSIGN_OR_RETURN(const TextSet texts, TextsOf(file, tokens));
  AddPieces(scores, texts, &result);
  AppendSpecs(has_bytes, adds_space, &result.serialized);
  return result;
}

}  // namespace kvlathe

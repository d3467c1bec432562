// A SentencePiece model file is read here as far as another form of the same tokenizer needs it:
// the library's public interface does not tell its settings. Fields and numbers are those of
// sentencepiece_model.proto (ModelProto).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct SentencePieceModel {
  enum class Kind {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;
    float score = 0;  // pieces of greater score are formed first
    Kind kind = Kind::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  // TrainerSpec
  bool is_bpe = false;
  bool byte_fallback = false;
  bool whitespace_is_suffix = false;
  // NormalizerSpec
  bool has_rules = false;  // a normalisation other than identity
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  // kDataLoss if the bytes are no serialised ModelProto with pieces.
  static StatusOr<SentencePieceModel> Parse(std::string_view serialized);
};

}  // namespace kvlathe

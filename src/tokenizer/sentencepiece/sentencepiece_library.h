// The SentencePiece library stands behind standard types here: its header declares names in
// Abseil's namespace that clash with the real Abseil, so only one source file includes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace kvlathe {

class SentencePieceLibrary {
 public:
  enum class PieceKind { kNormal, kUnknown, kControl, kByte };

  // Null if the library refuses the model; *error then says why.
  static std::unique_ptr<SentencePieceLibrary> Load(std::string_view serialized_model,
                                                    std::string* error);
  ~SentencePieceLibrary();

  int n_pieces() const;
  const std::string& PieceOf(int id) const;
  PieceKind KindOf(int id) const;
  bool HasPiece(std::string_view piece) const;
  // -1 if the model has none.
  int bos_id() const;
  int eos_id() const;
  int unk_id() const;

  // `text` is well-formed UTF-8.
  std::vector<int32_t> Tokenize(std::string_view text) const;

 private:
  SentencePieceLibrary();
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace kvlathe

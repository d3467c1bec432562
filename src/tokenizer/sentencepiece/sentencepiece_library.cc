#include "tokenizer/sentencepiece/sentencepiece_library.h"

#include <sentencepiece_processor.h>

namespace kvlathe {

SentencePieceLibrary::SentencePieceLibrary()
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}
SentencePieceLibrary::~SentencePieceLibrary() = default;

std::unique_ptr<SentencePieceLibrary> SentencePieceLibrary::Load(std::string_view serialized_model,
                                                                 std::string* error) {
  auto library = std::unique_ptr<SentencePieceLibrary>(new SentencePieceLibrary);
  const auto status = library->processor_->LoadFromSerializedProto(serialized_model);
  if (status.ok() && library->n_pieces() > 0) return library;
  *error = status.ok() ? "no pieces" : status.error_message();
  return nullptr;
}

int SentencePieceLibrary::n_pieces() const { return processor_->GetPieceSize(); }

const std::string& SentencePieceLibrary::PieceOf(int id) const { return processor_->IdToPiece(id); }

SentencePieceLibrary::PieceKind SentencePieceLibrary::KindOf(int id) const {
  if (processor_->IsUnknown(id)) return PieceKind::kUnknown;
  if (processor_->IsControl(id)) return PieceKind::kControl;
  if (processor_->IsByte(id)) return PieceKind::kByte;
  return PieceKind::kNormal;
}

bool SentencePieceLibrary::HasPiece(std::string_view piece) const {
  return processor_->PieceToId(piece) != processor_->unk_id();
}

int SentencePieceLibrary::bos_id() const { return processor_->bos_id(); }
int SentencePieceLibrary::eos_id() const { return processor_->eos_id(); }
int SentencePieceLibrary::unk_id() const { return processor_->unk_id(); }

std::vector<int32_t> SentencePieceLibrary::Tokenize(std::string_view text) const {
  // Fails only without a loaded model, which Load rules out.
  return processor_->EncodeAsIds(text);
}

}  // namespace kvlathe

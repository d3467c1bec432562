#include "training/tokenizer_training/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr uint64_t kBpe = 2;  // TrainerSpec.ModelType

struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // varint and fixed-width fields
  std::string_view bytes;  // length-delimited fields
};

// The fields of one message of Protocol Buffers, in order.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  bool done() const { return rest_.empty(); }
  // False where the message is damaged.
  bool Next(Field* field) {
    uint64_t tag = 0;
    if (!ReadVarint(&tag)) return false;
    *field = {.number = tag >> 3};
    switch (tag & 7) {
      case 0:
        return ReadVarint(&field->value);
      case 1:
        return ReadFixed(8, &field->value);
      case 2:
        return ReadVarint(&field->value) && TakeBytes(field->value, &field->bytes);
      case 5:
        return ReadFixed(4, &field->value);
      default:
        return false;
    }
  }

 private:
  bool TakeBytes(uint64_t n_bytes, std::string_view* bytes) {
    if (n_bytes > rest_.size()) return false;
    *bytes = rest_.substr(0, n_bytes);
    rest_.remove_prefix(n_bytes);
    return true;
  }

  bool ReadFixed(uint64_t n_bytes, uint64_t* value) {
    static_assert(std::endian::native == std::endian::little);
    std::string_view bytes;
    if (!TakeBytes(n_bytes, &bytes)) return false;
    std::memcpy(value, bytes.data(), bytes.size());
    return true;
  }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      std::string_view byte;
      if (!TakeBytes(1, &byte)) return false;
      *value |= static_cast<uint64_t>(byte[0] & 0x7F) << shift;
      if ((byte[0] & 0x80) == 0) return true;
    }
    return false;
  }

  std::string_view rest_;
};

bool ParsePiece(std::string_view message, SentencePieceModel::Piece* piece) {
  FieldReader reader(message);
  for (Field field; !reader.done();) {
    if (!reader.Next(&field)) return false;
    if (field.number == 1) piece->text = field.bytes;
    if (field.number == 2) piece->score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) {
      if (field.value < 1 || field.value > 6) return false;
      piece->kind = static_cast<SentencePieceModel::Kind>(field.value);
    }
  }
  return !piece->text.empty() && !std::isnan(piece->score) &&
         EndOfWellFormedRun(piece->text, 0) == piece->text.size();
}

bool ParseTrainerSpec(std::string_view message, SentencePieceModel* model) {
  FieldReader reader(message);
  for (Field field; !reader.done();) {
    if (!reader.Next(&field)) return false;
    if (field.number == 3) model->is_bpe = field.value == kBpe;
    if (field.number == 24) model->whitespace_is_suffix = field.value != 0;
    if (field.number == 35) model->byte_fallback = field.value != 0;
  }
  return true;
}

bool ParseNormalizerSpec(std::string_view message, SentencePieceModel* model) {
  FieldReader reader(message);
  for (Field field; !reader.done();) {
    if (!reader.Next(&field)) return false;
    if (field.number == 2) model->has_rules = !field.bytes.empty();
    if (field.number == 3) model->add_dummy_prefix = field.value != 0;
    if (field.number == 4) model->remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model->escape_whitespaces = field.value != 0;
  }
  return true;
}

}  // namespace

StatusOr<SentencePieceModel> SentencePieceModel::Parse(std::string_view serialized) {
  const auto damaged = [] { return Error(StatusCode::kDataLoss, "not a SentencePiece model"); };
  SentencePieceModel model;
  FieldReader reader(serialized);
  for (Field field; !reader.done();) {
    if (!reader.Next(&field)) return damaged();
    if (field.number == 1) {
      if (!ParsePiece(field.bytes, &model.pieces.emplace_back())) return damaged();
    } else if (field.number == 2) {
      if (!ParseTrainerSpec(field.bytes, &model)) return damaged();
    } else if (field.number == 3) {
      if (!ParseNormalizerSpec(field.bytes, &model)) return damaged();
    }
  }
  if (model.pieces.empty()) return damaged();
  return model;
}

}  // namespace kvlathe

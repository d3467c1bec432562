#include "tokenizer/byte_alphabet.h"
#include "tokenizer/word_model.h"

namespace kvlathe {
namespace {

constexpr int32_t kNoByteId = -1;

}  // namespace

ByteBpe::ByteBpe(BpeSpec spec, const Vocabulary* vocabulary)
    : spec_(std::move(spec)), vocabulary_(vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    id_of_byte_[byte] =
        vocabulary->Find(BytesToAlphabet({&c, 1})).value_or(spec_.unk_id.value_or(kNoByteId));
  }
}

void ByteBpe::AppendTokens(std::string_view piece, TokenizeScratch* scratch,
                           std::vector<int32_t>* ids) const {
  if (scratch->memo.AppendKnown(piece, ids)) return;
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  std::optional<int32_t> whole;
  if (spec_.ignore_merges) whole = vocabulary_->Find(BytesToAlphabet(piece));
  if (whole) {
    symbols.push_back(*whole);
  } else {
    for (const char c : piece) {
      const int32_t id = id_of_byte_[static_cast<unsigned char>(c)];
      if (id == kNoByteId) continue;
      const bool fuses =
          spec_.fuse_unk && id == spec_.unk_id && !symbols.empty() && symbols.back() == id;
      if (!fuses) symbols.push_back(id);
    }
    spec_.merges.Apply(&symbols, &scratch->merge);
  }
  scratch->memo.Remember(piece, symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

}  // namespace kvlathe

// A sequence as bytes: a head of its own, and for each layer a file as a cache of one layer is
// saved (kv/blocks/sequence_file.h), behind its length.
#include <cstring>
#include <span>
#include <string_view>

#include "codec/row_codec.h"

namespace kvlathe {
namespace {

constexpr std::string_view kMagic = "KVLCODEC";

void AppendNumber(uint64_t number, std::string* to) {
  for (int i = 0; i < 8; ++i) to->push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

// The next 8 bytes, little-endian; nothing where they are not there.
std::optional<uint64_t> TakeNumber(std::span<const std::byte>* from) {
  if (from->size() < 8) return std::nullopt;
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number |= uint64_t{std::to_integer<uint8_t>((*from)[i])} << (8 * i);
  *from = from->subspan(8);
  return number;
}

Status Damaged(const char* what) {
  return Error(StatusCode::kDataLoss, "saved sequence: {}", what);
}

}  // namespace

StatusOr<std::string> RowCodec::Save(const CodecSequence& sequence) {
  KVL_RETURN_IF_ERROR(CheckIsBetweenSteps(sequence, "save"));
  if (sequence.n_tokens() == 0) {
    return Error(StatusCode::kFailedPrecondition, "the sequence has no rows to save");
  }
  std::string bytes(kMagic);
  AppendNumber(static_cast<uint64_t>(sequence.n_layers()), &bytes);
  AppendNumber(static_cast<uint64_t>(sequence.n_prompt()), &bytes);
  for (int l = 0; l < sequence.n_layers(); ++l) {
    SequencePieces pieces(&sequence.cache(l), identity_, "");
    AppendNumber(static_cast<uint64_t>(pieces.n_bytes()), &bytes);
    while (!pieces.is_at_end()) bytes += pieces.Next();
  }
  return bytes;
}

StatusOr<std::unique_ptr<CodecSequence>> RowCodec::Load(std::span<const std::byte> bytes) {
  if (bytes.size() < kMagic.size() ||
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return Damaged("these bytes are none; a sequence's to_bytes gives such");
  }
  bytes = bytes.subspan(kMagic.size());
  const std::optional<uint64_t> n_layers = TakeNumber(&bytes), n_prompt = TakeNumber(&bytes);
  if (!n_layers.has_value() || !n_prompt.has_value()) return Damaged("it ends in its head");
  if (*n_layers != static_cast<uint64_t>(layout_.n_layers)) {
    return Error(StatusCode::kDataLoss, "saved sequence: it has {} layers, and this codec {}",
                 *n_layers, layout_.n_layers);
  }
  if (*n_prompt > uint64_t{1} << 40) return Damaged("its prompt has no length");
  std::unique_ptr<CodecSequence> sequence = NewSequence(static_cast<int64_t>(*n_prompt));
  for (int l = 0; l < layout_.n_layers; ++l) {
    const std::optional<uint64_t> n_bytes = TakeNumber(&bytes);
    if (!n_bytes.has_value() || *n_bytes > bytes.size()) return Damaged("it is cut off");
    SequencePlace place = {
        .identity = identity_, .layout = &layers_[l]->layout(), .max_tokens = config_.max_seq_len};
    SequenceCache* const cache = &sequence->cache(l);
    KVL_RETURN_IF_ERROR(
        RestoreSequence(bytes.first(*n_bytes), "saved sequence", place, cache).status());
    if (cache->n_tokens() != sequence->cache(0).n_tokens() ||
        cache->n_prompt() != sequence->n_prompt()) {
      return Damaged("its layers differ in length");
    }
    bytes = bytes.subspan(*n_bytes);
  }
  if (!bytes.empty()) return Damaged("there are bytes behind its end");
  return sequence;
}

}  // namespace kvlathe

#include "kv/byte_kinds.h"

#include <variant>

#include "kv/cache_objects.h"

namespace kvlathe {
namespace {

// What the blocks and the record of a run hold, by what the codec keeps of a head.
struct SealedKinds {
  const PackedShape& s;
  ByteKinds* kinds;

  void AddBlocks(const std::monostate& /*storage*/, int64_t n) const { AddCodedBlocks(n); }
  void AddBlocks(const EntryBits& /*bits*/, int64_t n) const { AddCodedBlocks(n); }
  void AddBlocks(const RotatedRanks& /*ranks*/, int64_t n) const {
    kinds->plain += n * PackedBlockBytes(s);
  }
  void AddRecord(const std::monostate& /*storage*/) const { AddCodedRecord(); }
  void AddRecord(const EntryBits& /*bits*/) const { AddCodedRecord(); }
  void AddRecord(const RotatedRanks& /*ranks*/) const { kinds->lowrank += RunRecordBytes(s); }

 private:
  void AddCodedBlocks(int64_t n_blocks) const {
    kinds->codes += n_blocks * (KeyCodeBytes(s) + ValueCodeBytes(s));
    kinds->scales +=
        n_blocks * (KeyTokenScaleBytes(s) + KeyBalanceBytes(s) + ValueTokenScaleBytes(s));
    kinds->lowrank += n_blocks * 2 * FactorBytes(s);
    kinds->exact += n_blocks * (KeyCountBytes(s) + ValueCountBytes(s));
  }
  void AddCodedRecord() const {
    kinds->scales += KeyChannelScaleBytes(s) + ValueBalanceBytes(s);
    kinds->lowrank += KeySparseEndsOffset(s) - KeyBasisOffset(s);
    kinds->exact += RunRecordBytes(s) - KeySparseEndsOffset(s);
  }
};

void AddSealedBlocks(const PackedShape& s, int64_t n_blocks, ByteKinds* kinds) {
  std::visit([&](const auto& of) { SealedKinds{s, kinds}.AddBlocks(of, n_blocks); }, s.storage);
}

void AddRunRecord(const PackedShape& s, ByteKinds* kinds) {
  std::visit([&](const auto& of) { SealedKinds{s, kinds}.AddRecord(of); }, s.storage);
}

void AddToKinds(const CacheObjects& objects, ByteKinds* kinds) {
  kinds->padding += objects.n * (objects.object_bytes - objects.n_bytes);
  const int64_t n_bytes = objects.n * objects.n_bytes;
  switch (objects.part) {
    case ObjectPart::kSink:
      kinds->sinks += n_bytes;
      return;
    case ObjectPart::kSealedBlock:
      return AddSealedBlocks(*objects.packed, objects.n, kinds);
    case ObjectPart::kPlainBlock:
      kinds->plain += n_bytes;
      return;
    case ObjectPart::kRunRecord:
      return AddRunRecord(*objects.packed, kinds);
    case ObjectPart::kLayerRecord: {
      const int64_t scales = ValueLayerScaleBytes(*objects.packed);
      kinds->scales += scales;
      kinds->exact += n_bytes - scales;
      return;
    }
    case ObjectPart::kQueryGram:
      kinds->lowrank += n_bytes;
      return;
    case ObjectPart::kOpenEntry:
    case ObjectPart::kFlags:
    case ObjectPart::kEntries:
      kinds->entries += n_bytes;
      return;
    case ObjectPart::kBlockTable:
    case ObjectPart::kRunTable:
      kinds->tables += n_bytes;
      return;
  }
}

}  // namespace

void ByteKinds::Add(const ByteKinds& more) {
  for (const auto& [unused, member] : kByteKinds) this->*member += more.*member;
}

std::vector<ByteKinds> ByteKindsByLayer(const CacheLayout& layout, const SequenceLength& length) {
  std::vector<ByteKinds> layers(layout.n_layers);
  if (length.n_tokens <= 0) return layers;
  ForEachObject(layout, SequenceContents(layout, length),
                [&](int layer_idx, int /*kv_head_idx*/, const CacheObjects& objects) {
                  AddToKinds(objects, &layers[layer_idx]);
                });
  return layers;
}

}  // namespace kvlathe

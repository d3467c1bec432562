// Any bytes behind the head of a stream are either parts that make up a file, or give one printable
// line that names the peer, however they are cut into pieces. Checksums are set right, so that what
// remains wrong is hostile and not damaged. The first byte says how long pieces are.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/crc32c.h"
#include "kv/blocks/sequence_stream.h"

namespace {

using kvlathe::CacheLayout;
using kvlathe::SequenceStreamReader;

constexpr int kTokens = 70;
const kvlathe::SequenceIdentity kIdentity = {"none", "model"};

CacheLayout TinyLayout() { return {1, 1, 16, 2, {{16, 16, kvlathe::DType::kBf16}}}; }

void SetChecksum(std::string* part) {
  const auto checked = std::as_bytes(std::span(*part)).first(part->size() - 4);
  const uint32_t crc = kvlathe::ExtendCrc32c(0, checked);
  std::memcpy(part->data() + part->size() - 4, &crc, 4);
}

// Each part, as its numbers say how long it is, gets the checksum that it should have.
void SetChecksums(std::string* parts) {
  for (size_t begin = 0; begin + 8 <= parts->size();) {
    uint32_t n_ranges = 0, n_bytes = 0;
    std::memcpy(&n_ranges, parts->data() + begin, 4);
    std::memcpy(&n_bytes, parts->data() + begin + 4, 4);
    const uint64_t n_part = 8 + uint64_t{n_ranges} * 8 + n_bytes + 4;
    if (n_part > parts->size() - begin) return;
    std::string part = parts->substr(begin, n_part);
    SetChecksum(&part);
    parts->replace(begin, n_part, part);
    begin += n_part;
  }
}

void CheckStream(const CacheLayout& layout, const std::string& stream, size_t piece) {
  SequenceStreamReader reader("fuzz", kIdentity, &layout, kTokens);
  for (size_t begin = 0; begin < stream.size(); begin += piece) {
    const kvlathe::Status status = reader.Add(std::string_view(stream).substr(begin, piece));
    if (status.ok()) continue;
    const std::string message = kvlathe::MessageOf(status);
    KVL_CHECK(message.starts_with("fuzz: "));
    KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
    return;
  }
  if (!reader.is_whole()) return;
  const std::string file = reader.TakeFile();
  const auto parsed = kvlathe::ParseSequenceFile(std::as_bytes(std::span(file)), "fuzz");
  KVL_CHECK(parsed.ok());
  KVL_CHECK_EQ(parsed->n_tokens, kTokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  if (n_bytes == 0) return 0;
  const CacheLayout layout = TinyLayout();
  const size_t piece = data[0] == 0 ? n_bytes + 4096 : data[0];
  std::string bytes(reinterpret_cast<const char*>(data + 1), n_bytes - 1);
  CheckStream(layout, bytes, piece);
  SetChecksums(&bytes);
  const kvlathe::SequenceStreamWriter writer(kIdentity, &layout, {kTokens, kTokens + 1, 0});
  CheckStream(layout, writer.Head() + bytes, piece);
  return 0;
}

#include "engine/prefixes/prefix_file.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/sha256.h"
#include "io/byte_reader.h"

namespace kvlathe {
namespace {

constexpr std::string_view kPrefixMagic = "KVLPFX\r\n";
constexpr uint32_t kPrefixVersion = 1;
constexpr size_t kDigestBytes = 64;
constexpr int64_t kPrefixCrcBytes = 4;
constexpr uint32_t kMaxSpecBytes = 1 << 16;
constexpr int64_t kMaxPrefixHeadBytes = int64_t{256} << 20;

Status DamagedHead(std::string_view name, std::string_view why) {
  return Error(StatusCode::kDataLoss, "{}: damaged: {}", name, why);
}

bool IsDigest(std::string_view text) {
  return text.size() == kDigestBytes && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool ReadDigest(ByteReader* reader, std::string* digest) {
  std::string_view text;
  if (!reader->ReadBytes(kDigestBytes, &text) || !IsDigest(text)) return false;
  *digest = text;
  return true;
}

bool ReadFacts(ByteReader* reader, PrefixFacts* facts) {
  uint32_t n_tokens = 0, spec_bytes = 0;
  std::string_view spec;
  if (!ReadDigest(reader, &facts->place) || !ReadDigest(reader, &facts->tenant) ||
      !reader->Read(&facts->n_prompt) || !reader->Read(&facts->reference_bytes) ||
      !reader->Read(&n_tokens) || !reader->ReadArray(n_tokens, &facts->tokens) ||
      !reader->Read(&spec_bytes) || spec_bytes > kMaxSpecBytes ||
      !reader->ReadBytes(spec_bytes, &spec) || !reader->rest().empty()) {
    return false;
  }
  facts->spec = spec;
  return n_tokens > 0 && facts->n_prompt >= 0 && facts->reference_bytes >= 0 &&
         std::ranges::none_of(spec, [](char c) { return c < 32 || c == 127; });
}

}  // namespace

std::string PrefixFileName(const PrefixFacts& facts) {
  const auto text_of = [](const auto* data, size_t n) {
    return std::string_view(reinterpret_cast<const char*>(data), n * sizeof(*data));
  };
  const std::string digest = DigestOf({facts.place, facts.tenant, text_of(&facts.n_prompt, 1),
                                       text_of(facts.tokens.data(), facts.tokens.size())});
  return digest.substr(0, 32) + std::string(kPrefixFileEnding);
}

std::string PrefixHead(const PrefixFacts& facts, int64_t n_sequence_bytes) {
  KVL_CHECK(IsDigest(facts.place) && IsDigest(facts.tenant));
  std::string rest = facts.place + facts.tenant;
  AppendBytes(facts.n_prompt, &rest);
  AppendBytes(facts.reference_bytes, &rest);
  AppendBytes(static_cast<uint32_t>(facts.tokens.size()), &rest);
  AppendArray(std::span(facts.tokens), &rest);
  AppendBytes(static_cast<uint32_t>(facts.spec.size()), &rest);
  rest += facts.spec;
  std::string head(kPrefixMagic);
  AppendBytes(kPrefixVersion, &head);
  const int64_t head_bytes = kPrefixStartBytes + std::ssize(rest) + kPrefixCrcBytes;
  AppendBytes(head_bytes + n_sequence_bytes, &head);
  AppendBytes(static_cast<uint32_t>(head_bytes), &head);
  head += rest;
  AppendBytes(ExtendCrc32c(0, std::as_bytes(std::span(head))), &head);
  return head;
}

StatusOr<int64_t> PrefixHeadBytes(std::span<const std::byte> start, int64_t n_bytes,
                                  std::string_view name) {
  ByteReader reader(start);
  std::string_view magic;
  uint32_t version = 0, head_bytes = 0;
  int64_t whole_bytes = 0;
  if (!reader.ReadBytes(kPrefixMagic.size(), &magic) || magic != kPrefixMagic ||
      !reader.Read(&version)) {
    return Error(StatusCode::kDataLoss, "{}: not a stored prefix", name);
  }
  if (version != kPrefixVersion) {
    return Error(StatusCode::kUnimplemented,
                 "{}: a stored prefix of format {}; this build reads format {}", name, version,
                 kPrefixVersion);
  }
  if (!reader.Read(&whole_bytes) || whole_bytes != n_bytes || !reader.Read(&head_bytes) ||
      head_bytes <= kPrefixStartBytes + kPrefixCrcBytes || head_bytes > kMaxPrefixHeadBytes ||
      head_bytes > n_bytes) {
    return DamagedHead(name, "its length is not the one that it says");
  }
  return int64_t{head_bytes};
}

StatusOr<PrefixFacts> ParsePrefixHead(std::span<const std::byte> head, std::string_view name) {
  KVL_CHECK_GT(std::ssize(head), kPrefixStartBytes + kPrefixCrcBytes);
  const auto checked = head.first(head.size() - kPrefixCrcBytes);
  uint32_t crc = 0;
  std::memcpy(&crc, head.data() + checked.size(), kPrefixCrcBytes);
  if (ExtendCrc32c(0, checked) != crc) {
    return DamagedHead(name, "the checksum of its head does not match");
  }
  ByteReader reader(checked.subspan(kPrefixStartBytes));
  PrefixFacts facts;
  if (!ReadFacts(&reader, &facts)) return DamagedHead(name, "its head is not one of a prefix");
  return facts;
}

}  // namespace kvlathe

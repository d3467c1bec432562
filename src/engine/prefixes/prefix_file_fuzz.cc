// Any bytes are either the head of a prefix file, and then what they say is written the same again,
// or give one printable line that names the file. Lengths and checksum are set right, so that what
// remains wrong is hostile and not damaged.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/crc32c.h"
#include "engine/prefixes/prefix_file.h"

namespace {

kvlathe::StatusOr<kvlathe::PrefixFacts> Parse(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto start = bytes.first(std::min<size_t>(kvlathe::kPrefixStartBytes, bytes.size()));
  KVL_ASSIGN_OR_RETURN(const int64_t n_head,
                       kvlathe::PrefixHeadBytes(start, std::ssize(file), "fuzz"));
  return kvlathe::ParsePrefixHead(bytes.first(static_cast<size_t>(n_head)), "fuzz");
}

void CheckParse(const std::string& file) {
  const auto facts = Parse(file);
  if (!facts.ok()) {
    const std::string message = kvlathe::MessageOf(facts.status());
    KVL_CHECK(message.starts_with("fuzz: "));
    KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
    return;
  }
  uint32_t n_head = 0;
  std::memcpy(&n_head, file.data() + 20, sizeof(n_head));
  KVL_CHECK(kvlathe::PrefixHead(*facts, std::ssize(file) - n_head) == file.substr(0, n_head));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  std::string file(reinterpret_cast<const char*>(data), n_bytes);
  CheckParse(file);
  if (n_bytes < kvlathe::kPrefixStartBytes + sizeof(uint32_t)) return 0;
  const auto whole = static_cast<uint64_t>(n_bytes);
  const auto head = static_cast<uint32_t>(n_bytes);
  std::memcpy(file.data() + 12, &whole, sizeof(whole));
  std::memcpy(file.data() + 20, &head, sizeof(head));
  const auto checked = std::as_bytes(std::span(file)).first(n_bytes - sizeof(uint32_t));
  const uint32_t crc = kvlathe::ExtendCrc32c(0, checked);
  std::memcpy(file.data() + checked.size(), &crc, sizeof(crc));
  CheckParse(file);
  return 0;
}

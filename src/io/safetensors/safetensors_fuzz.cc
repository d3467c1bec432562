// Any bytes either parse, and then the tensors fill the data exactly, or give one printable line
// that names the file.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/check.h"
#include "io/safetensors/safetensors_header.h"

namespace {

void Check(std::span<const std::byte> file) {
  const auto header = kvlathe::ParseSafetensorsHeader(file, "fuzz");
  if (!header.ok()) {
    const std::string message = kvlathe::MessageOf(header.status());
    KVL_CHECK(message.starts_with("fuzz: "));
    KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
    return;
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const auto data_begin = static_cast<int64_t>(8 + header_bytes);
  int64_t total_bytes = 0;
  for (const auto& [name, entry] : header->entries) {
    KVL_CHECK_LE(data_begin, entry.begin);
    KVL_CHECK_LE(entry.begin, entry.end);
    KVL_CHECK_LE(entry.end, std::ssize(file));
    total_bytes += entry.end - entry.begin;
    if (!entry.dtype) continue;
    int64_t n_elements = 1;
    for (const int64_t n : entry.shape) n_elements *= n;
    KVL_CHECK_EQ(n_elements * kvlathe::SizeOf(*entry.dtype), entry.end - entry.begin);
  }
  KVL_CHECK_EQ(total_bytes, std::ssize(file) - data_begin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  std::string file(reinterpret_cast<const char*>(data), n_bytes);
  Check(std::as_bytes(std::span(file)));
  // A change of the JSON seldom keeps the length before it right, so it is also set right.
  const size_t last_brace = file.rfind('}');
  if (last_brace == std::string::npos || last_brace < 8) return 0;
  const uint64_t header_bytes = last_brace - 7;
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  Check(std::as_bytes(std::span(file)));
  return 0;
}

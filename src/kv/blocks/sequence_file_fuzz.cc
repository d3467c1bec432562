// Any bytes either parse, and then the numbers of the header describe the rest exactly, or give one
// printable line that names the file.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/crc32c.h"
#include "kv/blocks/sequence_file.h"

namespace {

void Check(std::span<const std::byte> bytes) {
  const auto file = kvlathe::ParseSequenceFile(bytes, "fuzz");
  if (!file.ok()) {
    const std::string message = kvlathe::MessageOf(file.status());
    KVL_CHECK(message.starts_with("fuzz: "));
    KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
    return;
  }
  const kvlathe::CacheLayout& layout = file->layout;
  KVL_CHECK_EQ(layout.shapes.size(), size_t(layout.n_layers) * layout.n_kv_heads);
  KVL_CHECK_GE(file->n_tokens, 0);
  KVL_CHECK_LE(file->state.size() + file->rows.size(), bytes.size());
  // The formula below is that of plain blocks.
  if (layout.seal.has_value() || layout.retention.has_value()) return;
  int64_t row_bytes = 0;
  for (size_t i = 0; file->n_tokens > 0 && i < layout.shapes.size(); ++i) {
    const auto layer_idx = static_cast<int>(i) / layout.n_kv_heads;
    const bool has_sinks = !kvlathe::SinksOutOfWindow(layout, layer_idx, file->n_tokens - 1);
    row_bytes += (has_sinks ? kvlathe::SinkBytes(layout, layout.shapes[i]) : 0) +
                 (kvlathe::BlocksFor(layout, file->n_tokens) -
                  kvlathe::BlocksOutOfWindow(layout, layer_idx, file->n_tokens - 1)) *
                     kvlathe::BlockObjectBytes(layout, layout.shapes[i]);
  }
  KVL_CHECK_EQ(row_bytes, std::ssize(file->rows));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  std::string file(reinterpret_cast<const char*>(data), n_bytes);
  Check(std::as_bytes(std::span(file)));
  // A change seldom keeps the length and the checksum right, so they are also set right.
  constexpr size_t kLengthOffset = 12;
  if (file.size() < kLengthOffset + sizeof(uint64_t) + sizeof(uint32_t)) return 0;
  const uint64_t length = file.size();
  std::memcpy(file.data() + kLengthOffset, &length, sizeof(length));
  const size_t n_checked = file.size() - sizeof(uint32_t);
  const uint32_t crc = kvlathe::ExtendCrc32c(0, std::as_bytes(std::span(file)).first(n_checked));
  std::memcpy(file.data() + n_checked, &crc, sizeof(crc));
  Check(std::as_bytes(std::span(file)));
  return 0;
}

// Any bytes either parse, and then every tensor lies in the file apart from all others and converts
// without reading beside itself, or give one printable line that names the file.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/gguf/ggml_types.h"
#include "io/gguf/gguf_header.h"

namespace {

using kvlathe::GgufHeader;
using kvlathe::GgufTensorEntry;

// A copy, so that a read past the tensor is a read past the memory.
void CheckValues(std::span<const std::byte> file, const GgufTensorEntry& entry) {
  const auto type = kvlathe::GgmlTypeOf(entry.type);
  if (!type) return;
  const auto bytes = file.subspan(entry.begin, entry.n_bytes);
  const std::vector<std::byte> blocks(bytes.begin(), bytes.end());
  const auto& layout = kvlathe::LayoutOf(*type);
  const int64_t n = entry.n_bytes / layout.block_bytes * layout.block_values;
  std::vector<float> values(n);
  kvlathe::DequantizeBlocks(*type, blocks.data(), n, values.data());
  const bool finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
  KVL_CHECK_EQ(kvlathe::AllFinite(*type, blocks.data(), n), finite);
}

void CheckTensors(std::span<const std::byte> file, const GgufHeader& header) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const auto& [name, entry] : header.tensors) {
    KVL_CHECK_EQ(entry.begin % header.alignment, 0);
    KVL_CHECK_LE(entry.begin + entry.n_bytes, std::ssize(file));
    const auto layout = kvlathe::KnownGgmlLayout(entry.type);
    if (!layout) continue;
    int64_t n_elements = 1;
    for (const int64_t n : entry.shape) n_elements *= n;
    KVL_CHECK_EQ(n_elements % layout->block_values, 0);
    KVL_CHECK_EQ(n_elements / layout->block_values * layout->block_bytes, entry.n_bytes);
    places.emplace_back(entry.begin, entry.begin + entry.n_bytes);
    CheckValues(file, entry);
  }
  std::ranges::sort(places);
  for (size_t i = 1; i < places.size(); ++i) {
    KVL_CHECK_LE(places[i - 1].second, places[i].first);
  }
}

// Reads every character of every text.
void CheckMetadata(const GgufHeader& header) {
  size_t n_zeros = 0, n_characters = 0;
  const auto read = [&](std::string_view text) {
    n_zeros += static_cast<size_t>(std::ranges::count(text, '\0'));
    n_characters += text.size();
  };
  for (const auto& [key, value] : header.metadata) {
    read(key);
    if (const auto* text = std::get_if<std::string_view>(&value)) read(*text);
    if (const auto* texts = std::get_if<std::vector<std::string_view>>(&value)) {
      std::ranges::for_each(*texts, read);
    }
  }
  KVL_CHECK_LE(n_zeros, n_characters);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const auto file = std::as_bytes(std::span(data, n_bytes));
  const auto header = kvlathe::ParseGgufHeader(file, "fuzz");
  if (header.ok()) {
    CheckTensors(file, *header);
    CheckMetadata(*header);
    return 0;
  }
  const std::string message = kvlathe::MessageOf(header.status());
  KVL_CHECK(message.starts_with("fuzz: "));
  KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
  return 0;
}

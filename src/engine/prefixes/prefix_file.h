// A prefix file is an entry of the prefix store on disk: what it is an entry of, its tokens, and
// its cache as a saved sequence.
//
//   offset  bytes
//   0       8       "KVLPFX\r\n"
//   8       4       format version, 1
//   12      8       n_bytes of the whole file
//   20      4       n_bytes of the head, its checksum included
//   24      64      digest of the place, hexadecimal
//   88      64      digest of the tenant, hexadecimal
//   152     8       where the prompt ends in the cache
//   160     8       bytes that a 16-bit cache would take for these tokens
//   168     4       n_tokens
//   172             token ids, 4 bytes each
//                   the spec: a length of 4 bytes and the text
//   last    4       CRC-32C of the head before
//
// and then a file of kv/blocks/sequence_file.h, which has a checksum of its own. Numbers are
// little-endian. So the head is known without the rows, and the rows are checked when they are
// read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct PrefixFacts {
  std::string spec;    // canonical, for people
  std::string place;   // SHA-256 of PlaceText (kv/blocks/sequence_file.h): model, spec and layout
  std::string tenant;  // SHA-256 of whom it belongs to
  int64_t n_prompt = 0;
  int64_t reference_bytes = 0;
  std::vector<int32_t> tokens;  // as many as the cache holds
};

// The name of the file with these facts: equal entries have equal names.
std::string PrefixFileName(const PrefixFacts& facts);
inline constexpr std::string_view kPrefixFileEnding = ".kvprefix";

// The head of a file whose saved sequence has so many bytes.
std::string PrefixHead(const PrefixFacts& facts, int64_t n_sequence_bytes);

// As many bytes as tell how long the head is.
inline constexpr int64_t kPrefixStartBytes = 24;
// The length of the head of a file of n_bytes that starts with these kPrefixStartBytes. The error
// is kDataLoss, or kUnimplemented for another version, in a line that begins with `name`.
StatusOr<int64_t> PrefixHeadBytes(std::span<const std::byte> start, int64_t n_bytes,
                                  std::string_view name);
// Of a whole head. Errors likewise.
StatusOr<PrefixFacts> ParsePrefixHead(std::span<const std::byte> head, std::string_view name);

}  // namespace kvlathe

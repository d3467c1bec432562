// Added tokens are matched in the text as they are written, before any merge: control tokens of
// chat formats, and words that were added to a vocabulary later.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "base/text_range.h"

namespace kvlathe {

// The flags are those of Hugging Face's AddedToken.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // swallows the white space after it
  bool normalized = true;    // searched for in the normalised text, normalised itself
  bool special = false;      // left out of text, and of parsing on request
};

// The ranges that have bytes of [begin, end) of a text, as ranges of that part.
std::vector<TextRange> RangesWithin(std::span<const TextRange> ranges, size_t begin, size_t end);

// How many bytes of `text` are white space, which tokens with lstrip or rstrip swallow.
int64_t CountSpaceBytes(std::string_view text);

class AddedTokenMatcher {
 public:
  // A stretch of text between tokens (no id), or one token.
  using Sink = absl::FunctionRef<void(std::optional<int32_t> id, size_t begin, size_t end)>;

  // `pattern` is what is searched for: the content, or its normalised form.
  void Add(const AddedToken& token, std::string_view pattern);

  // Leftmost-longest matches without overlap, in order, with the text between them. Special tokens
  // that have bytes of `plain` (ascending, without overlap) are no matches.
  void Split(std::string_view text, std::span<const TextRange> plain, Sink sink) const;
  // Whether a token takes the white space beside it along.
  bool swallows_spaces() const;

 private:
  struct Found {
    int32_t token_idx;
    size_t end;
  };
  std::optional<Found> LongestAt(std::string_view text, size_t begin) const;

  static constexpr int32_t kNone = -1;
  static uint64_t EdgeKey(int32_t node, unsigned char byte) {
    return static_cast<uint64_t>(node) << 8 | byte;
  }

  std::vector<AddedToken> tokens_;
  // A trie over the patterns' bytes; node 0 is the root.
  std::array<bool, 256> starts_pattern_{};
  absl::flat_hash_map<uint64_t, int32_t> edges_;
  std::vector<int32_t> token_at_node_ = {kNone};
};

}  // namespace kvlathe

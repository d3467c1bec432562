#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace kvlathe {

std::string StreamingDetokenizer::Push(int32_t id) {
  std::string bytes = tokenizer_->TokenBytes(id, keeps_special_);
  if (bytes.empty()) return {};
  if (at_start_) {
    at_start_ = false;
    // The whole-text form drops the space that stands for the start of the text.
    bytes = tokenizer_->Detokenize({&id, 1}, keeps_special_);
  }
  pending_ += bytes;
  std::string whole;
  size_t pos = 0;
  while (pos < pending_.size()) {
    const Utf8Char c = ReadUtf8(pending_, pos);
    if (c.state == Utf8Char::State::kIncomplete) break;
    if (c.state == Utf8Char::State::kWhole) {
      whole.append(pending_, pos, c.n_bytes);
    } else {
      whole += kReplacementChar;
    }
    pos += c.n_bytes;
  }
  pending_.erase(0, pos);
  return whole;
}

std::string StreamingDetokenizer::Finish() {
  // Push leaves at most one incomplete character, which Unicode replaces by one U+FFFD.
  const bool is_cut = !pending_.empty();
  pending_.clear();
  return is_cut ? std::string(kReplacementChar) : std::string();
}

}  // namespace kvlathe

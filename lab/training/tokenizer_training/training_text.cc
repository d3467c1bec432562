#include "training/tokenizer_training/training_text.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "io/files.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

// The share of a text that is looked at, sentence by sentence: as much is taken as has gone by
// times the share, so that the bound holds at every point.
class Sampler {
 public:
  Sampler(int64_t total_bytes, int64_t max_bytes)
      : share_(total_bytes <= max_bytes
                   ? 1.0
                   : static_cast<double>(max_bytes) / static_cast<double>(total_bytes)) {}

  bool Takes(size_t n_bytes) {
    seen_bytes_ += static_cast<double>(n_bytes);
    if (taken_bytes_ + static_cast<double>(n_bytes) > seen_bytes_ * share_) return false;
    taken_bytes_ += static_cast<double>(n_bytes);
    return true;
  }

 private:
  double share_;
  double seen_bytes_ = 0;
  double taken_bytes_ = 0;
};

// Where the first sentence of `line` ends.
size_t EndOfSentence(std::string_view line) {
  if (line.size() <= kMaxSentenceBytes) return line.size();
  const size_t space = line.rfind(' ', kMaxSentenceBytes);
  if (space != std::string_view::npos && space > 0) return space;
  size_t end = kMaxSentenceBytes;
  while ((static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
  return end;
}

void AppendSentences(std::string_view line, Sampler* sampler, std::vector<std::string>* sentences) {
  while (!line.empty()) {
    const size_t end = EndOfSentence(line);
    if (sampler->Takes(end)) sentences->emplace_back(line.substr(0, end));
    // The space in front of the next sentence is the one that every text gets.
    line.remove_prefix(end < line.size() && line[end] == ' ' ? end + 1 : end);
  }
}

// Whether a character may be part of a learned piece.
bool EndsLine(const Utf8Char& c) {
  return c.state != Utf8Char::State::kWhole || c.code < 0x20 || c.code == 0x7F;
}

void AppendText(std::string_view text, Sampler* sampler, std::vector<std::string>* sentences) {
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadAsciiOrUtf8(text, pos);
    if (EndsLine(c)) {
      AppendSentences(text.substr(begin, pos - begin), sampler, sentences);
      begin = pos + c.n_bytes;
    }
    pos += c.n_bytes;
  }
  AppendSentences(text.substr(begin), sampler, sentences);
}

}  // namespace

StatusOr<std::vector<std::string>> ReadTrainingText(std::span<const std::string> paths,
                                                    int64_t max_text_bytes) {
  int64_t total_bytes = 0;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto n_bytes = std::filesystem::file_size(path, error);
    // Opening the file says what is wrong with it.
    if (!error) total_bytes += static_cast<int64_t>(n_bytes);
  }
  Sampler sampler(total_bytes, max_text_bytes);
  std::vector<std::string> sentences;
  for (const std::string& path : paths) {
    KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
    AppendText(text, &sampler, &sentences);
  }
  return sentences;
}

}  // namespace kvlathe

// A corpus is tokenised training data on disk.
//
// A corpus is a directory with corpus.json, the tokenizer's files, and a file of little-endian
// numbers for every source: a token id, and in the highest bit whether the token is only read, not
// learned. The numbers are uint16 where all ids of the vocabulary fit into 15 bits, and uint32
// elsewhere. A stream is text without end, cut anywhere; rows are samples of a fixed length (task
// examples, whole but for the last of a row).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/mapped_file.h"

namespace kvlathe {

// In memory a token is a uint32: its id, with this where it is only read.
inline constexpr uint32_t kNotLearned = uint32_t{1} << 31;
inline constexpr int kMaxCorpusVocabSize = 1 << 30;

// Of a token in a file of a corpus with this vocabulary: 2 or 4.
constexpr int TokenFileBytes(int vocab_size) { return vocab_size <= (1 << 15) ? 2 : 4; }
// Appends tokens as such a file has them.
void AppendTokens(std::span<const uint32_t> tokens, int vocab_size, std::string* bytes);

// The tokens of a source, as long as its corpus lives.
class TokenView {
 public:
  TokenView(const std::byte* data, int64_t size, int bytes_per_token)
      : data_(data), size_(size), bytes_per_token_(bytes_per_token) {}

  int64_t size() const { return size_; }
  uint32_t operator[](int64_t i) const;
  // Tokens [begin, begin + out.size()).
  void Copy(int64_t begin, std::span<int64_t> out) const;

 private:
  const std::byte* data_;
  int64_t size_;
  int bytes_per_token_;
};

struct SourceInfo {
  std::string file;    // in the corpus directory
  int row_tokens = 0;  // 0: a stream
  int64_t n_tokens = 0;
  int64_t n_bytes = 0;  // of the text that the tokens stand for
};

struct CorpusInfo {
  int vocab_size = 0;
  int bos_id = -1;  // what texts begin with; -1: the tokenizer puts nothing before them
  std::map<std::string, SourceInfo> sources;
};

inline constexpr char kCorpusFile[] = "corpus.json";
Status WriteCorpusInfo(const std::string& directory, const CorpusInfo& info);

// Copies the files that make a tokenizer from one directory to another, which is made if needed.
Status CopyTokenizer(const std::string& from_directory, const std::string& directory);

class Corpus {
 public:
  // kNotFound or kDataLoss naming the file: missing, not as long as corpus.json says, an id outside
  // the vocabulary.
  static StatusOr<Corpus> Open(const std::string& directory);

  const CorpusInfo& info() const { return info_; }
  // Null when there is no such source.
  const SourceInfo* Find(const std::string& source) const;
  TokenView tokens(const std::string& source) const;

 private:
  CorpusInfo info_;
  std::map<std::string, MappedFile> files_;
};

}  // namespace kvlathe

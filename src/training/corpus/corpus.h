// Tokenised training data on disk.
//
// A corpus is a directory with corpus.json, the tokenizer's files, and a file of little-endian
// uint16 for every source: a token id, and in bit 15 whether the token is only read, not learned. A
// stream is text without end, cut anywhere; rows are samples of a fixed length (task examples,
// whole but for the last of a row).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/mapped_file.h"

namespace kvlathe {

inline constexpr uint16_t kNotLearned = 0x8000;
inline constexpr int kMaxCorpusVocabSize = kNotLearned;

struct SourceInfo {
  std::string file;    // in the corpus directory
  int row_tokens = 0;  // 0: a stream
  int64_t n_tokens = 0;
  int64_t n_bytes = 0;  // of the text that the tokens stand for
};

struct CorpusInfo {
  int vocab_size = 0;
  int bos_id = 0;
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
  std::span<const uint16_t> tokens(const std::string& source) const;

 private:
  CorpusInfo info_;
  std::map<std::string, MappedFile> files_;
};

}  // namespace kvlathe

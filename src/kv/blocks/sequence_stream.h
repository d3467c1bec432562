// A sequence stream carries the cache of a prompt to another machine while the prompt is read: what
// becomes final goes at once, and what arrives makes up a file of kv/blocks/sequence_file.h.
//
//   offset  bytes
//   0       8       "KVLSTR\r\n"
//   8       4       format version, 1
//   12      4       n_tokens of the file
//   16      8       where its prompt ends
//   24      8       n_bytes of the whole file
//   32      4       n_bytes of its head: of all before its rows
//   36              the head
//   then    4       CRC-32C of everything before
//
// and then parts, until all rows are there:
//
//   0       4       n_ranges, at least 1
//   4       4       n_bytes of the rows in this part
//   8               the ranges: where each begins in the rows and how long it is, 4 bytes each,
//                   counted in 64 bytes, as all objects are multiples of that
//   then            the rows of the ranges, one after the other
//   last    4       CRC-32C of this part before
//
// Numbers are little-endian. No byte of the rows comes twice. The last four bytes of the file, its
// checksum, are not sent: whoever puts it together has checked all parts and writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/blocks/sequence_file.h"
#include "kv/blocks/sequence_rows.h"
#include "kv/cache_layout.h"

namespace kvlathe {

// Of the rows in one part. A writer keeps to it, a reader takes no longer part.
inline constexpr int64_t kMostPartBytes = int64_t{16} << 20;

// Writes the stream of a cache as it grows to place.n_tokens positions. The layout is one that
// shares prefixes (WhyNothingIsShared), so that a sealed run and a plain block that is full stay as
// they are. A cache that is computed again behind the same tokens goes on where another one was.
class SequenceStreamWriter {
 public:
  // `layout` outlives this.
  SequenceStreamWriter(const SequenceIdentity& identity, const CacheLayout* layout,
                       const PrefixPlace& place);

  // What comes before the first part.
  std::string Head() const;
  // A part with what is final and was not sent yet, as far as it fits; empty where there is
  // nothing. The last step of the cache, which is of the layout and has as many runs as its length
  // says, has ended.
  std::string Next(const SequenceCache& cache);
  bool is_at_end() const { return n_rows_sent_ == n_row_bytes_; }
  int64_t n_file_bytes() const { return n_file_bytes_; }

 private:
  int64_t CountFinal(const SequenceCache& cache, const PlacedObjects& placed) const;

  const CacheLayout* layout_;
  PrefixPlace place_;
  int64_t n_file_bytes_ = 0;  // before the head, which sets it
  std::string file_head_;
  int64_t n_row_bytes_ = 0;
  int64_t n_rows_sent_ = 0;
  std::vector<PlacedObjects> unsent_;  // what is left of all rows
};

// Puts a file together from a stream that comes in pieces of any length. It takes only the file
// that a prompt of n_tokens has in this place, and no more memory than that file and one part.
class SequenceStreamReader {
 public:
  // `layout` outlives this. `name` stands in front of errors.
  SequenceStreamReader(std::string name, SequenceIdentity identity, const CacheLayout* layout,
                       int n_tokens);

  // The error is kUnimplemented for another version, kInvalidArgument for the stream of another
  // model, spec, layout or prompt, and kDataLoss for what no writer writes. It is one printable
  // line, and nothing is taken after it.
  Status Add(std::string_view bytes);
  bool is_whole() const { return has_head_ && n_rows_left_ == 0; }
  int n_parts() const { return n_parts_; }
  int64_t n_received_bytes() const { return n_received_bytes_; }
  // The file, which is whole.
  std::string TakeFile();

 private:
  StatusOr<int64_t> NeededBytes() const;
  Status TakeHead();
  Status TakePart();

  const std::string name_;
  const SequenceIdentity identity_;
  const CacheLayout* const layout_;
  const int n_tokens_;
  std::string pending_;  // of a head or part that is not whole
  bool has_head_ = false;
  int64_t n_head_bytes_ = 0;  // of the file
  int64_t n_rows_left_ = 0;
  int64_t n_received_bytes_ = 0;
  int n_parts_ = 0;
  std::string file_;
  std::vector<bool> is_there_;  // of every 64 bytes of rows
};

}  // namespace kvlathe

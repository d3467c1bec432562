// A head whose stored channels have bits of their own, for tests: rows, the sealed blocks that are
// made of them, and what their codes stand for by a literal reading of the layout
// (packed_layout.h).
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/seal/seal.h"
#include "tensor/buffer.h"

namespace kvlathe {

struct SplitHead {
  std::vector<int> k_channels, v_channels;  // of 8, 5, 4, 3, 2 and 1 bits
  int n_blocks;
  int n_plain;  // entries behind the run
  int lowrank = 0;
  bool has_coded_rows = false;
  bool has_token_scales = false;
  bool has_one_side = false;  // rows of K are those of V (BlockShape), whose channels do not count
};

int SumOfChannels(const std::vector<int>& channels);

// What a window (unit_codes.h) of a code of so many bits stands for, in units of its channel or of
// its token; at 8 bits the code itself is given.
double ValueOfSplitWindow(int bits, int window, bool has_token_scales);
// The value that sealing looks for in place of it.
double SoughtOfSplitWindow(int bits, int window, bool has_token_scales);

// Where (token, channel of the segment) has its code by the text of the layout, and its window; at
// 8 bits the code itself.
struct SplitPlace {
  int64_t group;  // in the segment
  int line, word;
};
SplitPlace SplitPlaceOf(int bits, int n_channels, bool is_key, int t, int c);
int SplitWindowAt(const std::byte* segment, int bits, const SplitPlace& place);

// One head: rows, sealed and plain, and what sealed ones stand for.
class SplitProblem {
 public:
  SplitProblem(const SplitHead& h, DType type, uint64_t seed);

  Status Seal(Isa isa);
  void UsePacked();

  // Reads what the codes of (token, channel) stand for.
  double Decoded(bool is_key, int token, int channel) const;
  // The same of the values that sealing looks for.
  double Sought(bool is_key, int token, int channel) const;
  // The scale of K or of V of a token; 1 where tokens have none.
  double TokenScaleOf(bool is_key, int token) const;
  int BitsOf(bool is_key, int channel) const;
  const std::byte* packed_block(int b) const { return packed_[b].data(); }
  float& At(bool is_key, int token, int channel) {
    return is_key ? k[token * shape.rank_k + channel] : v[token * shape.rank_v + channel];
  }

  SplitHead head;
  BlockShape shape;
  HeadBits bits;
  PackedFormat format;
  PackedShape packed_shape;
  std::vector<float> k, v;  // as blocks that are not sealed hold them
  std::vector<const std::byte*> blocks;
  PackedRun run;
  PackedHead packed_head;

 private:
  template <typename F>
  double Read(bool is_key, int token, int channel, const F& value_of) const;
  float Rounded(double x) const;  // to the row type
  // What 8-bit codes under a scale of each row leave of rows.
  std::vector<float> Coded(const std::vector<float>& rows, int rank) const;
  // Mostly normal, a few far out. Where tokens have scales, some tokens are larger than others.
  std::vector<float> Rows(int n, int rank);
  void PutCodedRows(int token, int n_rows, std::byte* block);
  Buffer PlainBlock(int b, int n);

  Random random_;
  std::vector<float> given_k_, given_v_;  // in the row type, before they are coded
  std::vector<Buffer> plain_, packed_;
  Buffer record_;
};

inline const SplitHead kSplitHeads[] = {
    {{16, 16, 16, 16, 16, 16}, {16, 16, 32, 16, 16, 48}, 2, 5},
    {{0, 0, 64, 0, 0, 0}, {0, 0, 0, 0, 64, 0}, 3, 0},
    {{0, 0, 0, 0, 0, 16}, {0, 0, 0, 16, 0, 0}, 1, 64},
    {{32, 64, 0, 48, 0, 0}, {0, 48, 16, 0, 0, 80}, 2, 1},
    {{48, 0, 80, 0, 64, 64}, {64, 80, 0, 112, 0, 0}, 1, 30},
    {{16, 16, 16, 16, 16, 16}, {16, 16, 32, 16, 16, 48}, 2, 5, 0, false, true},
    {{0, 0, 0, 0, 0, 16}, {0, 0, 0, 16, 0, 0}, 1, 64, 0, false, true},
    {{0, 64, 0, 48, 0, 0}, {64, 0, 0, 0, 32, 80}, 3, 1, 0, false, true},
    {{16, 48, 64, 96, 160, 128}, {0, 16, 0, 96, 128, 144}, 1, 9, 0, false, true},
};

}  // namespace kvlathe

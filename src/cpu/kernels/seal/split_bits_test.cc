// Sealed blocks whose channels have bits of their own: codes against a literal reading of the
// layout (packed_layout.h) and the nearest of the literal centroids.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/testing/split_bits_problem.h"

namespace kvlathe {
namespace {

// Whether codes of a head stand for paths.
bool HasPaths(const SplitHead& head, int bits) { return head.has_token_scales && bits <= 4; }

// The least error of a code of (token, channel) that stands for itself.
double NearestError(SplitProblem& p, bool is_key, int token, int channel) {
  const int bits = p.BitsOf(is_key, channel);
  double nearest = std::numeric_limits<double>::infinity();
  for (int window = 0; window < (bits == 8 ? 256 : 32); ++window) {
    const double value =
        SoughtOfSplitWindow(bits, window, p.head.has_token_scales) * p.TokenScaleOf(is_key, token);
    nearest = std::min(nearest, std::abs(p.At(is_key, token, channel) - value));
  }
  return nearest;
}

TEST(SplitBits, CodesAreTheNearest) {
  for (const Isa isa : AvailableIsas()) {
    for (SplitHead head : kSplitHeads) {
      for (const int kind : {0, 1, 2}) {
        const DType type = kind == 0 ? DType::kF32 : DType::kBf16;
        head.has_coded_rows = kind == 2;
        SplitProblem p(head, type, 7);
        ASSERT_TRUE(p.Seal(isa).ok());
        for (const bool is_key : {true, false}) {
          const int rank = is_key ? p.shape.rank_k : p.shape.rank_v;
          for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
            for (int c = 0; c < rank; ++c) {
              if (HasPaths(head, p.BitsOf(is_key, c))) continue;
              const double x = p.At(is_key, t, c), got = p.Sought(is_key, t, c);
              ASSERT_LE(std::abs(x - got), NearestError(p, is_key, t, c) + 1e-6)
                  << IsaName(isa) << " key " << is_key << " token " << t << " channel " << c;
            }
          }
        }
      }
    }
  }
}

// A number of a word, in units of its token, and what the square of its error costs.
struct PathNumber {
  double x = 0, weight = 0;
};

// The least cost of all paths through a word, whose lines are given in order.
double LeastCost(int bits, const std::vector<PathNumber>& lines) {
  const int low_bits = bits == 3 ? 2 : bits, window_bits = bits == 3 ? 4 : 5;
  const int n_states = 1 << (window_bits - low_bits);
  double least = std::numeric_limits<double>::infinity();
  for (int start = 0; start < n_states; ++start) {
    std::vector<double> costs(n_states, std::numeric_limits<double>::infinity());
    costs[start] = 0;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
      std::vector<double> next(n_states, std::numeric_limits<double>::infinity());
      for (int window = 0; window < 32; ++window) {  // those of 3 bits with the high bit too
        const int low = window % (1 << window_bits);
        const double error = line->x - SoughtOfSplitWindow(bits, window, true);
        const double cost = costs[low >> low_bits] + line->weight * error * error;
        next[low % n_states] = std::min(next[low % n_states], cost);
      }
      costs = next;
    }
    least = std::min(least, costs[start]);
  }
  return least;
}

// Cost of the codes of a side's words in a block, and the least that there is.
struct PathCosts {
  double got = 0, least = 0;
};

PathCosts CostsOfPaths(SplitProblem& p, bool is_key, int block, int first, int n, int bits) {
  const int low_bits = bits == 3 ? 2 : bits;
  std::map<std::pair<int64_t, int>, std::vector<PathNumber>> words;
  PathCosts costs;
  for (int t = block * kBlockSize; t < (block + 1) * kBlockSize; ++t) {
    const double scale = p.TokenScaleOf(is_key, t);
    for (int c = 0; c < n; ++c) {
      const SplitPlace place = SplitPlaceOf(bits, n, is_key, t % kBlockSize, c);
      std::vector<PathNumber>& lines = words[{place.group, place.word}];
      lines.resize(16 / low_bits);
      lines[place.line] = {p.At(is_key, t, first + c) / scale, scale * scale};
      costs.got += std::pow(p.At(is_key, t, first + c) - p.Sought(is_key, t, first + c), 2);
    }
  }
  for (const auto& [place, lines] : words) costs.least += LeastCost(bits, lines);
  return costs;
}

TEST(SplitBits, PathsLoseNearlyAsLittleAsTheBest) {
  for (const SplitHead& head : kSplitHeads) {
    if (!head.has_token_scales) continue;
    SplitProblem p(head, DType::kF32, 7);
    ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
    for (const bool is_key : {true, false}) {
      const std::vector<int>& channels = is_key ? head.k_channels : head.v_channels;
      for (int i = 0, first = 0; i < 6; first += channels[i++]) {
        const int bits = kSplitBits[i];
        if (!HasPaths(head, bits) || channels[i] == 0) continue;
        PathCosts all;
        for (int b = 0; b < head.n_blocks; ++b) {
          const PathCosts costs = CostsOfPaths(p, is_key, b, first, channels[i], bits);
          all.got += costs.got, all.least += costs.least;
        }
        EXPECT_GE(all.got, all.least * (1 - 1e-5)) << bits << " bits, key " << is_key;
        EXPECT_LE(all.got, all.least * 1.06) << bits << " bits, key " << is_key;
      }
    }
  }
}

// What codes of a token lose under a scale, in shares of what its channels are expected to lose.
double LossUnder(SplitProblem& p, bool is_key, int token, double scale) {
  constexpr double kExpected[] = {1, 0.32162, 0.09918, 0.02916, 0.00881, 0.00292413};
  const int rank = is_key ? p.shape.rank_k : p.shape.rank_v;
  double loss = 0;
  for (int c = 0; c < rank; ++c) {
    const int bits = p.BitsOf(is_key, c);
    double nearest = std::numeric_limits<double>::infinity();
    // Each code for itself, as those of units of a token would be without paths.
    for (int code = 0; code < 1 << bits; ++code) {
      const double value =
          (bits == 8 ? (code - 128) / 16.0 : UnitCentroids(bits, StoredUnit::kToken)[code]) * scale;
      nearest = std::min(nearest, std::abs(p.At(is_key, token, c) - value));
    }
    loss += nearest * nearest / (bits == 8 ? 1 / 3072.0 : kExpected[bits]);
  }
  return loss;
}

double RootMeanSquareOf(SplitProblem& p, bool is_key, int token) {
  const int rank = is_key ? p.shape.rank_k : p.shape.rank_v;
  double square = 0;
  for (int c = 0; c < rank; ++c) square += std::pow(p.At(is_key, token, c), 2) / rank;
  return std::sqrt(square);
}

// Of all scales that a byte may stand for, within 8 steps of the root of the mean square.
TEST(SplitBits, ScalesOfTokensLoseLeast) {
  for (const SplitHead& head : kSplitHeads) {
    if (!head.has_token_scales) continue;
    SplitProblem p(head, DType::kF32, 7);
    ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
    for (const bool is_key : {true, false}) {
      for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
        const double root = RootMeanSquareOf(p, is_key, t);
        double least = std::numeric_limits<double>::infinity();
        int nearest = 0;
        std::vector<double> scales;
        for (int byte = 0; byte < 256; ++byte) {
          scales.push_back(std::ldexp(1 + byte % 16 / 16.0, byte / 16 - 11));
          if (std::abs(scales[byte] - root) < std::abs(scales[nearest] - root)) nearest = byte;
        }
        for (int byte = nearest - 8; byte <= nearest + 8; ++byte) {
          least = std::min(least, LossUnder(p, is_key, t, scales[byte]));
        }
        const double loss = LossUnder(p, is_key, t, p.TokenScaleOf(is_key, t));
        ASSERT_LE(loss, least * (1 + 1e-4)) << "key " << is_key << " token " << t;
      }
    }
  }
}

// Rows that are nothing, tiny, or beyond what any scale reaches.
TEST(SplitBits, ScalesOfExtremeTokensAreFinite) {
  SplitProblem p({{16, 0, 0, 0, 16, 0}, {0, 0, 0, 0, 0, 16}, 1, 0, 0, false, true}, DType::kF32, 7);
  const float sizes[] = {0, 1e-30f, 1e-3f, 20, 1e30f, 3e38f};
  for (int t = 0; t < 6; ++t) {
    for (int c = 0; c < 32; ++c) {
      const float value = c % 2 == 0 ? sizes[t] : -sizes[t];
      p.At(true, t, c) = value;
      std::memcpy(const_cast<std::byte*>(p.blocks[0]) + 4 * KeyOffset(t, c), &value, 4);
    }
  }
  for (const Isa isa : AvailableIsas()) {
    ASSERT_TRUE(p.Seal(isa).ok());
    EXPECT_EQ(p.TokenScaleOf(true, 0), std::ldexp(1, -11));
    EXPECT_EQ(p.TokenScaleOf(true, 1), std::ldexp(1, -11));
    EXPECT_EQ(p.TokenScaleOf(true, 4), 31);
    EXPECT_EQ(p.TokenScaleOf(true, 5), 31);
    for (const int t : {2, 3}) EXPECT_NEAR(p.Decoded(true, t, 0), sizes[t], 0.1 * sizes[t]);
    for (int c = 0; c < 16; ++c)
      EXPECT_EQ(p.Decoded(true, 5, c), c % 2 == 0 ? 31 * 127 / 16.0 : -248);
  }
}

TEST(SplitBits, BytesAreTheBitsAndScalesAndNothingElse) {
  const SplitProblem p(kSplitHeads[0], DType::kBf16, 1);
  EXPECT_EQ(
      PackedBlockBytes(p.packed_shape),
      64 * (16 * (8 + 5 + 4 + 3 + 2 + 1) + 16 * 8 + 16 * 5 + 32 * 4 + 16 * 3 + 16 * 2 + 48) / 8);
  EXPECT_EQ(RunRecordBytes(p.packed_shape), 0);
  EXPECT_EQ(LayerRecordBytes(p.packed_shape), 0);
  const SplitProblem of_tokens(kSplitHeads[6], DType::kBf16, 1);
  EXPECT_EQ(PackedBlockBytes(of_tokens.packed_shape), 64 * (16 * 1 + 16 * 3) / 8 + 64 + 64);
  EXPECT_EQ(RunRecordBytes(of_tokens.packed_shape), 0);
}

TEST(SplitBits, EveryInstructionSetGivesTheSameBytes) {
  for (SplitHead head : kSplitHeads) {
    head.lowrank = 3;
    head.has_coded_rows = !head.has_coded_rows && head.n_plain % 2 == 1;
    SplitProblem want(head, DType::kBf16, 9);
    ASSERT_TRUE(want.Seal(Isa::kScalar).ok());
    for (const Isa isa : AvailableIsas()) {
      SplitProblem got(head, DType::kBf16, 9);
      ASSERT_TRUE(got.Seal(isa).ok());
      for (int b = 0; b < head.n_blocks; ++b) {
        EXPECT_EQ(0, std::memcmp(want.packed_block(b), got.packed_block(b),
                                 PackedBlockBytes(want.packed_shape)));
      }
    }
  }
}

// What codes in units of their block or token lose is repaired in those of rows.
TEST(SplitBits, RepairsOfScaledChannelsLowerTheError) {
  const auto error_at = [](int lowrank, bool has_token_scales) {
    SplitProblem p(
        {{0, 0, 0, 0, 32, 0}, {0, 0, 0, 0, 16, 0}, 1, 0, lowrank, false, has_token_scales},
        DType::kF32, 5);
    EXPECT_TRUE(p.Seal(AvailableIsas().back()).ok());
    p.UsePacked();
    AttendParams params;
    params.shape = p.shape;
    params.packed = &p.packed_head;
    std::vector<float> block(kBlockSize * (32 + 16));
    ExpandPackedBlock(ViewRun(params, p.run), p.blocks[0], 0, block.data());
    double error = 0;
    for (int t = 0; t < kBlockSize; ++t) {
      for (int c = 0; c < 32; ++c) error += std::pow(block[KeyOffset(t, c)] - p.At(true, t, c), 2);
      for (int c = 0; c < 16 && has_token_scales; ++c) {
        const double value = block[kBlockSize * 32 + ValueOffset(p.shape, t, c)];
        error += std::pow(value - p.At(false, t, c), 2);
      }
    }
    return error;
  };
  for (const bool has_token_scales : {false, true}) {
    EXPECT_LT(error_at(8, has_token_scales), 0.7 * error_at(0, has_token_scales));
  }
}

TEST(SplitBits, RefusesNan) {
  SplitProblem p(kSplitHeads[0], DType::kF32, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(const_cast<std::byte*>(p.blocks[1]) + BlockBytes(p.shape) - 4, &nan, 4);
  const Status status = p.Seal(AvailableIsas().back());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
}

}  // namespace
}  // namespace kvlathe

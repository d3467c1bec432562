// Attention to keys that are turned inside frames, and to those that have only lost a mean before
// they turned, against plain attention to keys after RoPE, in double.
#include "cpu/attention/frames.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "cpu/attention/turning_mean.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "machine/attention/plan.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kModelDim = 24, kHalf = 8, kAbsolute = 3;  // channels from 16 on do not turn
constexpr int kMaps = 2, kRank = 48, kRankV = 16;
constexpr int kFirstPosition = 68, kFirstPlace = 64;  // as behind 4 sinks and a block out of window
constexpr double kAmplitude = 1.25;

double FrequencyOf(int pair) { return std::pow(10000.0, -pair / double{kHalf}); }

// Turns a row of the model; absolute pairs by `position`, the others by `place`.
void Turn(int position, int place, double amplitude, double* row) {
  for (int i = 0; i < kHalf; ++i) {
    const double angle = FrequencyOf(i) * (i < kAbsolute ? position : place);
    const double a = row[i], b = row[i + kHalf];
    row[i] = amplitude * (a * std::cos(angle) - b * std::sin(angle));
    row[i + kHalf] = amplitude * (b * std::cos(angle) + a * std::sin(angle));
  }
}

struct FramesCase {
  int n_entries = 1500;
  int n_tokens = 1, group = 4;
  int window = kNoWindow;
  int kv_begin = 0;
  bool has_frames = true;
  float score_cap = 0;
};

// One head of the cache that joins two of the model, whose maps put the channels of either in their
// places.
class FramesProblem {
 public:
  FramesProblem(const FramesCase& shape, uint64_t seed) : c_(shape), random_(seed) {
    mean_.resize(kMaps * kModelDim);
    offset_.resize(kMaps * kModelDim);
    for (int i = 0; i < kMaps * kModelDim; ++i) {
      if (i % kModelDim < 2 * kHalf) mean_[i] = static_cast<float>(2 * random_.Normal());
      offset_[i] = static_cast<float>(random_.Normal());
    }
    MakeAngles();
    MakeMaps();
    MakeRows();
  }

  std::vector<float> Attend(Isa isa) {
    ThreadPool pool(1);
    Linear linear(&pool, isa);
    const int n_rows = c_.n_tokens * c_.group;
    std::vector<float> o(n_rows * kRankV), row_max(n_rows), row_sum(n_rows);
    AttendParams params = {.shape = kShape,
                           .gqa_group = c_.group,
                           .n_rows = n_rows,
                           .blocks = blocks_.data(),
                           .kv_begin = c_.kv_begin,
                           .kv_end = c_.n_entries,
                           .first_visible = c_.n_entries - c_.n_tokens + 1,
                           .window = c_.window,
                           .sm_scale = kSmScale,
                           .score_cap = c_.score_cap,
                           .o = o.data(),
                           .o_stride = kRankV,
                           .row_max = row_max.data(),
                           .row_sum = row_sum.data()};
    FramesOfHead frames = {.maps = {},
                           .n_joined = kMaps,
                           .key_offset = offset_.data(),
                           .turning_mean = mean_.data(),
                           .mean_angles = MeanAngles(mean_angles_.data(), kHalf),
                           .cos = cos_.data(),
                           .sin = sin_.data(),
                           .half = kHalf,
                           .n_absolute = kAbsolute,
                           .way_back = static_cast<float>(1 / (kAmplitude * kAmplitude)),
                           .head_dim = kModelDim,
                           .first_position = kFirstPosition,
                           .first_place = kFirstPlace,
                           .q = reinterpret_cast<const std::byte*>(q_.data()),
                           .q_stride = kMaps * kModelDim};
    const int64_t n_floats = PartialFloats(n_rows, kRankV);
    Buffer kernel = Buffer::Allocate(kAttendScratchBytes, "scratch").value();
    const FrameKernels kernels = {GetAttendKernels(isa, DType::kF32), GetElementwiseKernels(isa),
                                  &linear, 0};
    if (c_.has_frames) {
      frames.maps = {&maps_[0], &maps_[1]};
      Buffer own =
          Buffer::Allocate(FrameScratchBytes(kShape, kModelDim, n_rows, n_floats), "own").value();
      AttendFrames(kernels, frames, params, {kernel.data(), own.data()});
    } else {
      params.q = q_.data();  // maps only put channels in their places
      params.q_stride = kRank;
      // Without a cap softmax ignores it.
      const std::vector<float> lost = LostProducts();
      params.score_offsets = lost.data();
      Buffer own =
          Buffer::Allocate(LessMeanScratchBytes(kModelDim, n_rows, n_floats), "own").value();
      AttendLessMean(kernels, frames, params, {kernel.data(), own.data()});
    }
    for (size_t i = 0; i < o.size(); ++i) o[i] /= row_sum[i / kRankV];
    return o;
  }

  std::vector<double> Reference() const {
    return AttendRef({.n_rows = c_.n_tokens * c_.group,
                      .gqa_group = c_.group,
                      .rank_k = kMaps * kModelDim,
                      .rank_v = kRankV,
                      .kv_begin = c_.kv_begin,
                      .kv_end = c_.n_entries,
                      .first_visible = c_.n_entries - c_.n_tokens + 1,
                      .window = c_.window,
                      .sm_scale = kSmScale,
                      .score_cap = c_.score_cap,
                      .q = {q_.begin(), q_.end()},
                      .k = turned_keys_,
                      .v = values_})
        .o;
  }

 private:
  static constexpr BlockShape kShape = {kRank, kRankV, DType::kF32};
  static constexpr float kSmScale = 0.1f;

  void MakeAngles() {
    std::vector<double> frequencies;
    for (int i = 0; i < kHalf; ++i) frequencies.push_back(FrequencyOf(i));
    mean_angles_ = MakeMeanAngles(frequencies, kAmplitude);
    for (int p = 0; p < kFirstPosition + c_.n_entries; ++p) {
      for (const double frequency : frequencies) {
        cos_.push_back(static_cast<float>(kAmplitude * std::cos(frequency * p)));
        sin_.push_back(static_cast<float>(kAmplitude * std::sin(frequency * p)));
      }
    }
  }

  // What the offset would add to the products of each row.
  std::vector<float> LostProducts() const {
    std::vector<float> lost(c_.n_tokens * c_.group);
    for (size_t row = 0; row < lost.size(); ++row) {
      const float* const q = q_.data() + row * kMaps * kModelDim;
      for (int i = 0; i < kMaps * kModelDim; ++i) lost[row] += q[i] * offset_[i];
    }
    return lost;
  }

  void MakeMaps() {
    for (int m = 0; m < kMaps; ++m) {
      std::vector<float> map(kRank * kModelDim);  // [n_out, n_in]
      for (int i = 0; i < kModelDim; ++i) map[(m * kModelDim + i) * kModelDim + i] = 1;
      maps_[m] = PackedMatrix::Create(kRank, kModelDim, DenseWeights(DType::kF32)).value();
      maps_[m].PackRows(0, kRank, DType::kF32, map.data(), kModelDim);
    }
  }

  // Keys lie in the cache as x = R(o) (k - mean) - offset, o their position where there are no
  // frames.
  void MakeRows() {
    std::vector<float> stored(int64_t{c_.n_entries} * kRank), v(int64_t{c_.n_entries} * kRankV);
    turned_keys_.resize(int64_t{c_.n_entries} * kMaps * kModelDim);
    for (int e = 0; e < c_.n_entries; ++e) {
      const int position = kFirstPosition + e;
      const int place = c_.has_frames ? (e + kFirstPlace) % kFramePositions : position;
      for (int m = 0; m < kMaps; ++m) {
        double x[kModelDim];
        double* const turned = &turned_keys_[(int64_t{e} * kMaps + m) * kModelDim];
        for (int i = 0; i < kModelDim; ++i) {
          turned[i] = random_.Normal() + mean_[m * kModelDim + i];
          x[i] = turned[i] - mean_[m * kModelDim + i];
        }
        Turn(position, position, kAmplitude, turned);
        Turn(position, place, kAmplitude, x);
        for (int i = 0; i < kModelDim; ++i) {
          const double lost = x[i] - offset_[m * kModelDim + i];
          stored[int64_t{e} * kRank + m * kModelDim + i] = static_cast<float>(lost);
        }
      }
    }
    for (float& x : v) x = static_cast<float>(random_.Normal());
    values_.assign(v.begin(), v.end());
    const int n_blocks = (c_.n_entries + kBlockSize - 1) / kBlockSize;
    memory_ = Buffer::Allocate(n_blocks * BlockBytes(kShape), "blocks").value();
    for (int b = 0; b < n_blocks; ++b) {
      const int first = b * kBlockSize;
      blocks_.push_back(memory_.data() + b * BlockBytes(kShape));
      GetAttendKernels(Isa::kScalar, DType::kF32)
          .append({.shape = kShape,
                   .block = memory_.data() + b * BlockBytes(kShape),
                   .n_rows = std::min(kBlockSize, c_.n_entries - first),
                   .k = &stored[int64_t{first} * kRank],
                   .k_stride = kRank,
                   .v = &v[int64_t{first} * kRankV],
                   .v_stride = kRankV});
    }
    q_.resize(c_.n_tokens * c_.group * kMaps * kModelDim);
    for (int row = 0; row < c_.n_tokens * c_.group; ++row) {
      const int map = row % c_.group / (c_.group / kMaps);
      for (int i = 0; i < kModelDim; ++i) {
        q_[(row * kMaps + map) * kModelDim + i] = static_cast<float>(random_.Normal());
      }
    }
  }

  FramesCase c_;
  Random random_;
  std::vector<float> mean_, offset_;
  std::vector<float> cos_, sin_, mean_angles_;
  PackedMatrix maps_[kMaps];
  std::vector<double> turned_keys_, values_;
  std::vector<float> q_;
  Buffer memory_;
  std::vector<const std::byte*> blocks_;
};

void ExpectSame(const FramesCase& shape) {
  for (const Isa isa : AvailableIsas()) {
    FramesProblem problem(shape, 3);
    const std::vector<float> got = problem.Attend(isa);
    const std::vector<double> want = problem.Reference();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 2e-4)
          << fmt::format("{}: value {}, {} tokens, group {}, window {}", IsaName(isa), i,
                         shape.n_tokens, shape.group, shape.window)
          << (shape.has_frames ? ", in frames" : ", without frames");
    }
  }
}

// Frames of which several are one product, and more than one such product.
TEST(Frames, AreAttentionToKeysAfterRope) {
  for (const int group : {2, 4, 12}) ExpectSame({.group = group});
  ExpectSame({.group = 4, .score_cap = 1});
  ExpectSame({.n_entries = 2000, .n_tokens = 3, .group = 4});
}

TEST(Frames, ManyTokensSeeTheirOwnEntries) {
  ExpectSame({.n_entries = 700, .n_tokens = 90, .group = 2});
  ExpectSame({.n_entries = 600, .n_tokens = 9, .group = 4, .window = 150, .score_cap = 2});
}

// A part of a range begins inside a frame.
TEST(Frames, BeginAnywhere) { ExpectSame({.n_entries = 900, .group = 6, .kv_begin = 320}); }

// One call and several of attention, whose parts are joined.
TEST(KeysLessMean, AreAttentionToKeysAfterRope) {
  for (const int group : {2, 4, 12}) ExpectSame({.group = group, .has_frames = false});
  ExpectSame({.n_entries = 9000, .group = 2, .has_frames = false});
  ExpectSame({.n_entries = 2000, .n_tokens = 2, .group = 4, .has_frames = false, .score_cap = 1});
  ExpectSame({.n_entries = 2000, .n_tokens = 30, .group = 4, .has_frames = false});
}

TEST(KeysLessMean, ManyTokensSeeTheirOwnEntries) {
  ExpectSame({.n_entries = 700, .n_tokens = 90, .group = 2, .has_frames = false});
  ExpectSame({.n_entries = 600, .n_tokens = 9, .group = 4, .window = 150, .has_frames = false});
}

TEST(KeysLessMean, BeginAnywhere) {
  ExpectSame({.n_entries = 900, .group = 6, .kv_begin = 320, .has_frames = false});
}

}  // namespace
}  // namespace kvlathe

// Attention to rebuilt blocks against attention in double to the model's keys and values.
#include "cpu/attention/rebuilt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "machine/attention/plan.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kDim = 32, kPairs = 8, kFixed = 3;  // channels from 16 on do not turn
constexpr int kStoredK = 48, kStoredV = 64;
constexpr int kFirstPosition = 68, kFirstPlace = 64;  // as behind 4 sinks and a block out of window
constexpr double kUp = 1.25;                          // amplitude of cosines and sines

struct RebuiltCase {
  int n_maps = 2;
  bool has_frames = false, has_mean = false;
  bool maps_values = true;
  int n_entries = 700, n_tokens = 40, group = 4;
  int window = kNoWindow;
  int kv_begin = 0;
  float score_cap = 0;
};

double SpeedOf(int pair) { return std::pow(10000.0, -pair / double{kPairs}); }

// Turns the pairs of a row from `first` on.
void TurnPairs(int first, int position, double amplitude, double* row) {
  for (int i = first; i < kPairs; ++i) {
    const double c = amplitude * std::cos(SpeedOf(i) * position);
    const double s = amplitude * std::sin(SpeedOf(i) * position);
    const double a = row[i], b = row[i + kPairs];
    row[i] = a * c - b * s;
    row[i + kPairs] = b * c + a * s;
  }
}

class RebuiltProblem {
 public:
  explicit RebuiltProblem(const RebuiltCase& shape) : c_(shape), random_(5) {
    const int n_maps = c_.n_maps;
    Fill(n_maps * kDim * kStoredK, 1 / std::sqrt(kStoredK), &key_maps_);
    Fill(n_maps * kDim * kStoredV, 1 / std::sqrt(kStoredV), &value_maps_);
    // A left inverse: it takes channel i from number i + 16 of a stored row, which nothing else
    // has.
    inverses_.resize(n_maps * kStoredV * kDim);
    for (int m = 0; m < n_maps; ++m) {
      for (int i = 0; i < kDim; ++i) {
        for (int j = 0; j < kDim; ++j) value_maps_[(m * kDim + j) * kStoredV + i + 16] = 0;
        value_maps_[(m * kDim + i) * kStoredV + i + 16] = 0.5f;
        inverses_[(m * kStoredV + i + 16) * kDim + i] = 2;
      }
    }
    Fill(n_maps * kDim, 1, &offset_);
    mean_.resize(n_maps * kDim);
    for (int i = 0; i < n_maps * kDim; ++i) {
      if (i % kDim < 2 * kPairs) mean_[i] = static_cast<float>(random_.Normal());
    }
    for (int p = 0; p < kFirstPosition + c_.n_entries; ++p) {
      for (int i = 0; i < kPairs; ++i) {
        cos_.push_back(static_cast<float>(kUp * std::cos(SpeedOf(i) * p)));
        sin_.push_back(static_cast<float>(kUp * std::sin(SpeedOf(i) * p)));
      }
    }
    FillWords(int64_t{c_.n_entries} * kStoredK, &keys_);
    FillWords(int64_t{c_.n_entries} * stored_v(), &values_);
    FillWords(int64_t{n_rows()} * n_maps * kDim, &q_);
    for (int row = 0; row < n_rows(); ++row) {
      for (int m = 0; m < n_maps; ++m) {
        if (m == MapOf(row)) continue;
        std::fill_n(&q_[(int64_t{row} * n_maps + m) * kDim], kDim, Bf16{});
      }
    }
    PlaceRows();
  }

  int n_rows() const { return c_.n_tokens * c_.group; }
  int stored_v() const { return c_.maps_values ? kStoredV : kDim; }

  // Outputs as the caller reads them: rows of the model.
  std::vector<double> Attend(Isa isa) {
    ThreadPool pool(1);
    Linear linear(&pool, isa);
    const BlockShape shape = {kStoredK, stored_v(), DType::kBf16};
    std::vector<float> o(n_rows() * stored_v()), row_sum(n_rows());
    AttendParams params;
    params.shape = shape;
    params.blocks = blocks_.data();
    params.kv_begin = c_.kv_begin;
    params.kv_end = c_.n_entries;
    params.first_visible = c_.n_entries - c_.n_tokens + 1;
    params.window = c_.window;
    params.sm_scale = kSmScale;
    params.score_cap = c_.score_cap;
    params.o_stride = stored_v();
    std::vector<RebuiltHead> heads(c_.n_maps);
    std::vector<PackedMatrix> packed(3 * c_.n_maps);
    for (int m = 0; m < c_.n_maps; ++m) {
      RebuiltHead& head = heads[m];
      head.head_dim = kDim;
      head.map = m;
      head.key =
          Pack(kDim, kStoredK, DType::kBf16, &key_maps_[m * kDim * kStoredK], &packed[3 * m]);
      if (!c_.maps_values) continue;
      head.value = (Pack(kDim, kStoredV, DType::kBf16, &value_maps_[m * kDim * kStoredV],
                         &packed[3 * m + 1]));
      head.output =
          Pack(kStoredV, kDim, DType::kF32, &inverses_[m * kStoredV * kDim], &packed[3 * m + 2]);
    }
    FramesOfHead frames;
    if (c_.has_frames) {
      frames.maps.assign(c_.n_maps, nullptr);  // of queries, which stay as they are
      frames.key_offset = offset_.data();
    }
    frames.turning_mean = mean_.data();
    std::vector<float> mean_angles = MakeMeanAngles(std::vector<double>(kPairs), 1);
    if (c_.has_mean) frames.mean_angles = MeanAngles(mean_angles.data(), kPairs);
    frames.cos = cos_.data();
    frames.sin = sin_.data();
    frames.half = kPairs;
    frames.n_absolute = kFixed;
    frames.way_back = static_cast<float>(1 / (kUp * kUp));
    frames.head_dim = kDim;
    frames.first_position = kFirstPosition;
    frames.first_place = kFirstPlace;
    Buffer kernel = Buffer::Allocate(kAttendScratchBytes, "scratch").value();
    Buffer own = Buffer::Allocate(RebuiltScratchBytes(shape, kDim, n_rows()), "scratch").value();
    const int group = c_.group / c_.n_maps, n = c_.n_tokens * group;
    std::vector<float> of_head(n * stored_v()), top(n), sum(n);
    params.gqa_group = group;
    params.n_rows = n;
    params.o = of_head.data();
    params.row_max = top.data();
    params.row_sum = sum.data();
    for (int m = 0; m < c_.n_maps; ++m) {
      const int64_t first = int64_t{m} * group * c_.n_maps * kDim + m * kDim;
      const RebuiltQueries queries = {reinterpret_cast<const std::byte*>(q_.data() + first),
                                      int64_t{c_.group} * c_.n_maps * kDim, c_.n_maps * kDim};
      AttendRebuilt({GetAttendKernels(isa, DType::kBf16), GetElementwiseKernels(isa), &linear, 0},
                    {GetSealedReader(isa), GetRebuildKernels(isa)}, heads[m], frames, queries,
                    params, {kernel.data(), own.data()});
      for (int i = 0; i < n; ++i) {
        const int row = i / group * c_.group + m * group + i % group;
        std::copy_n(&of_head[i * stored_v()], stored_v(), &o[row * stored_v()]);
        row_sum[row] = sum[i];
      }
    }
    std::vector<double> read(n_rows() * kDim);
    for (int row = 0; row < n_rows(); ++row) {
      for (int i = 0; i < kDim; ++i) {
        for (int r = 0; r < stored_v(); ++r) {
          read[row * kDim + i] += ValueMap(MapOf(row), i, r) * o[row * stored_v() + r];
        }
        read[row * kDim + i] /= row_sum[row];
      }
    }
    return read;
  }

  // The same of the rows that the stored ones stand for, head by head.
  std::vector<double> Reference() const {
    std::vector<double> all(n_rows() * kDim);
    const int group = c_.group / c_.n_maps;
    for (int m = 0; m < c_.n_maps; ++m) {
      std::vector<double> q, k, v;
      for (int row = 0; row < n_rows(); ++row) {
        if (MapOf(row) != m) continue;
        for (int i = 0; i < kDim; ++i) {
          q.push_back(ToFloat(q_[(int64_t{row} * c_.n_maps + m) * kDim + i]));
        }
      }
      for (int e = 0; e < c_.n_entries; ++e) {
        const std::vector<double> key = KeyOf(m, e);
        k.insert(k.end(), key.begin(), key.end());
        for (int i = 0; i < kDim; ++i) {
          double value = 0;
          for (int r = 0; r < stored_v(); ++r) {
            value += ValueMap(m, i, r) * ToFloat(values_[int64_t{e} * stored_v() + r]);
          }
          v.push_back(value);
        }
      }
      const std::vector<double> o = AttendRef({.n_rows = c_.n_tokens * group,
                                               .gqa_group = group,
                                               .rank_k = kDim,
                                               .rank_v = kDim,
                                               .kv_begin = c_.kv_begin,
                                               .kv_end = c_.n_entries,
                                               .first_visible = c_.n_entries - c_.n_tokens + 1,
                                               .window = c_.window,
                                               .sm_scale = kSmScale,
                                               .score_cap = c_.score_cap,
                                               .q = q,
                                               .k = k,
                                               .v = v})
                                        .o;
      for (int row = 0, i = 0; row < n_rows(); ++row) {
        if (MapOf(row) != m) continue;
        std::copy_n(&o[i * kDim], kDim, &all[row * kDim]);
        ++i;
      }
    }
    return all;
  }

 private:
  static constexpr float kSmScale = 0.15f;

  int MapOf(int row) const { return row % c_.group / (c_.group / c_.n_maps); }
  double ValueMap(int map, int channel, int r) const {
    if (!c_.maps_values) return channel == r ? 1 : 0;
    return ToFloat(ToBf16(value_maps_[(map * kDim + channel) * kStoredV + r]));
  }

  std::vector<double> KeyOf(int map, int entry) const {
    std::vector<double> key(kDim);
    const int position = kFirstPosition + entry;
    for (int i = 0; i < kDim; ++i) {
      for (int r = 0; r < kStoredK; ++r) {
        key[i] += double{ToFloat(ToBf16(key_maps_[(map * kDim + i) * kStoredK + r]))} *
                  ToFloat(keys_[int64_t{entry} * kStoredK + r]);
      }
      if (c_.has_frames) key[i] += offset_[map * kDim + i];
    }
    if (c_.has_frames) {
      TurnPairs(kFixed, position - (entry + kFirstPlace) % kFramePositions, 1, key.data());
    }
    if (c_.has_mean) {
      double mean[kDim] = {};
      std::copy_n(&mean_[map * kDim], 2 * kPairs, mean);
      TurnPairs(0, position, 1, mean);
      for (int i = 0; i < kDim; ++i) key[i] += mean[i];
    }
    return key;
  }

  void Fill(int n, double deviation, std::vector<float>* to) {
    to->resize(n);
    for (float& x : *to) x = static_cast<float>(deviation * random_.Normal());
  }
  void FillWords(int64_t n, std::vector<Bf16>* to) {
    to->resize(n);
    for (Bf16& x : *to) x = ToBf16(static_cast<float>(random_.Normal()));
  }

  static const PackedMatrix* Pack(int n_out, int n_in, DType type, const float* rows,
                                  PackedMatrix* to) {
    *to = PackedMatrix::Create(n_out, n_in, DenseWeights(type)).value();
    to->PackRows(0, n_out, DType::kF32, rows, n_in);
    return to;
  }

  void PlaceRows() {
    const BlockShape shape = {kStoredK, stored_v(), DType::kBf16};
    const int n_blocks = (c_.n_entries + kBlockSize - 1) / kBlockSize;
    memory_ = Buffer::Allocate(n_blocks * BlockBytes(shape), "blocks").value();
    for (int b = 0; b < n_blocks; ++b) {
      const int first = b * kBlockSize;
      blocks_.push_back(memory_.data() + b * BlockBytes(shape));
      AppendParams rows;
      rows.shape = shape;
      rows.block = memory_.data() + b * BlockBytes(shape);
      rows.n_rows = std::min(kBlockSize, c_.n_entries - first);
      rows.k = &keys_[int64_t{first} * kStoredK];
      rows.k_stride = kStoredK;
      rows.v = &values_[int64_t{first} * stored_v()];
      rows.v_stride = stored_v();
      GetAttendKernels(Isa::kScalar, DType::kBf16).append(rows);
    }
  }

  RebuiltCase c_;
  Random random_;
  std::vector<float> key_maps_, value_maps_, inverses_, offset_, mean_, cos_, sin_;
  std::vector<Bf16> keys_, values_, q_;
  Buffer memory_;
  std::vector<const std::byte*> blocks_;
};

// Rows in Bf16 have errors of 2^-9 of what they are, and outputs of a few of those.
void ExpectSameAsModel(const RebuiltCase& shape) {
  for (const Isa isa : AvailableIsas()) {
    RebuiltProblem problem(shape);
    const std::vector<double> got = problem.Attend(isa), want = problem.Reference();
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(error / size), 0.01)
        << fmt::format("{}: {} heads, frames {}, mean {}", IsaName(isa), shape.n_maps,
                       shape.has_frames, shape.has_mean);
  }
}

TEST(Rebuilt, AreTheHeadsOfTheModel) {
  ExpectSameAsModel({});
  ExpectSameAsModel({.n_maps = 3, .group = 9});
}

TEST(Rebuilt, KeysGetBackWhatTheyHaveLost) {
  ExpectSameAsModel({.has_frames = true});
  ExpectSameAsModel({.has_mean = true});
  ExpectSameAsModel({.has_frames = true, .has_mean = true});
  ExpectSameAsModel({.has_frames = true, .has_mean = true, .score_cap = 1});
}

TEST(Rebuilt, ValuesMayStayAsTheyAre) {
  ExpectSameAsModel({.n_maps = 1, .has_frames = true, .has_mean = true, .maps_values = false});
}

TEST(Rebuilt, BeginAnywhereAndSeeWindows) {
  ExpectSameAsModel({.has_frames = true, .has_mean = true, .kv_begin = 320});
  ExpectSameAsModel({.has_frames = true, .n_entries = 600, .window = 150});
}

}  // namespace
}  // namespace kvlathe

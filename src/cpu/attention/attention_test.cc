// Ragged batches over compressed blocks against plain attention in double.
#include "cpu/attention/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/attention/addresses.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "cpu/memory/host_places.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// Where all heads of a test lie: rows of its own, where they are, and cache memory.
CpuDevice& Memory() {
  static CpuDevice memory;
  return memory;
}
ObjectPlace At(const void* rows) {
  static const HostPlaces places(&Memory());
  return places(rows);
}
const CpuResidents& NoResidents() {
  static const CpuResidents residents(&Memory());
  return residents;
}

constexpr int kHeadDim = 64;
const float kSmScale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));

// A matrix of row_type and what its rounded values are.
struct Rows {
  Rows(int64_t n_values, DType row_type) : dtype(row_type), bytes(n_values * SizeOf(row_type)) {}
  void Fill(double sigma, Random& random) {
    values.resize(static_cast<int64_t>(bytes.size()) / SizeOf(dtype));
    if (values.empty()) return;
    for (float& x : values) x = static_cast<float>(sigma * random.Normal());
    const auto n = static_cast<int64_t>(values.size());
    ConvertFromFloat(dtype, values.data(), n, bytes.data());
    ConvertToFloat(dtype, bytes.data(), n, values.data());
  }
  const std::byte* at(int64_t i) const { return bytes.data() + i * SizeOf(dtype); }

  DType dtype;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

struct HeadShape {
  int rank_k = 64, rank_v = 64;
  int gqa_group = 2;
  int n_total = 100;  // positions after this step
  int n_tokens = 1;   // the last of them
  int n_sink = 0;     // positions that the sink keeps when there are as many
  int window = kNoWindow;
  float score_cap = 0;
  bool has_sink_logits = false;
  bool loses_keys = false;  // all keys are stored less the same row
};

// One KV head of one sequence. Position p lies in the sink if p < n_sink, else in entry p - n_sink.
class Head {
 public:
  Head(const HeadShape& shape, DType row_type, uint64_t seed)
      : s_(shape),
        block_shape_{s_.rank_k, s_.rank_v, row_type},
        random_(seed),
        q_(RowsOf(s_.n_total * s_.gqa_group, s_.rank_k, 2)),
        q_full_(RowsOf(s_.n_total * s_.gqa_group, kHeadDim, 2)),
        k_(RowsOf(s_.n_total, s_.rank_k, 1)),
        v_(RowsOf(s_.n_total, s_.rank_v, 1)),
        sink_k_(RowsOf(s_.n_sink, kHeadDim, 1)),
        out_stride_(s_.gqa_group * s_.rank_v + 16),
        out_(s_.n_total * out_stride_, row_type),
        sink_logits_(RowsIn(DType::kF32, 1, s_.gqa_group, 2)),
        lost_(RowsIn(DType::kF32, 1, kHeadDim, s_.loses_keys ? 0.5 : 0)) {
    Store();
    Poison();
  }

  // The last n_tokens of the first n_total positions, as one step.
  HeadJob Step(int n_total, int n_tokens) {
    const int first = n_total - n_tokens;
    const auto place_if = [](bool is_there, const Rows& rows) {
      return is_there ? At(rows.at(0)) : ObjectPlace();
    };
    return {.device = &device_,
            .shape = block_shape_,
            .head_dim = kHeadDim,
            .gqa_group = s_.gqa_group,
            .n_tokens = n_tokens,
            .q = At(q_.at(int64_t{first} * s_.gqa_group * s_.rank_k)),
            .q_stride = s_.rank_k,
            .q_full = At(q_full_.at(int64_t{first} * s_.gqa_group * kHeadDim)),
            .q_full_stride = kHeadDim,
            .blocks = blocks_,
            .n_entries = std::max(0, n_total - s_.n_sink),
            .first_visible = first + 1 - s_.n_sink,
            .window = s_.window,
            .sinks = {.k = stored_sink_k_,
                      .v = stored_sink_v_,
                      .n = std::min(s_.n_sink, n_total),
                      .first_visible = first + 1,
                      .window = s_.window},
            .lost_keys = place_if(s_.loses_keys, lost_),
            .sink_logits = place_if(s_.has_sink_logits, sink_logits_),
            .out = At(out_.bytes.data() + first * out_stride_ * SizeOf(block_shape_.row_type)),
            .out_type = block_shape_.row_type,
            .out_stride = out_stride_};
  }
  HeadJob Step() { return Step(s_.n_total, s_.n_tokens); }

  void Poison() { std::memset(out_.bytes.data(), 0xff, out_.bytes.size()); }

  // What position pos has written: [gqa_group * rank_v].
  std::vector<float> OutputOf(int pos) const {
    std::vector<float> row(s_.gqa_group * s_.rank_v);
    ConvertToFloat(out_.dtype, out_.at(pos * out_stride_), static_cast<int64_t>(row.size()),
                   row.data());
    return row;
  }
  // All rows of the step, one after the other.
  std::vector<float> Outputs() const {
    std::vector<float> all;
    for (int pos = s_.n_total - s_.n_tokens; pos < s_.n_total; ++pos) {
      const std::vector<float> row = OutputOf(pos);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  // What query head h of position pos attends to: weights of positions [0, pos], 0 outside the
  // window.
  std::vector<double> WeightsOf(int pos, int h) const {
    const int64_t row = int64_t{pos} * s_.gqa_group + h;
    std::vector<double> weights(pos + 1);
    double lost = 0;
    for (int d = 0; d < kHeadDim; ++d) {
      lost += double{q_full_.values[row * kHeadDim + d]} * lost_.values[d] * kSmScale;
    }
    const double logit = s_.has_sink_logits ? sink_logits_.values[h] : -1e300;
    double sum = 0, top = logit;
    const int begin = std::max(0, pos + 1 - s_.window);
    for (int p = begin; p <= pos; ++p) {
      const bool in_sink = p < s_.n_sink;
      const int n_dims = in_sink ? kHeadDim : s_.rank_k;
      const float* q = (in_sink ? q_full_ : q_).values.data() + row * n_dims;
      const float* k = (in_sink ? sink_k_ : k_).values.data() + int64_t{p} * n_dims;
      for (int d = 0; d < n_dims; ++d) weights[p] += double{q[d]} * k[d] * kSmScale;
      weights[p] = CapScoreRef(weights[p] + lost, s_.score_cap);
      top = std::max(top, weights[p]);
    }
    for (int p = 0; p <= pos; ++p) {
      weights[p] = p < begin ? 0 : std::exp(weights[p] - top);
      sum += weights[p];
    }
    if (s_.has_sink_logits) sum += std::exp(logit - top);
    for (double& w : weights) w /= sum;
    return weights;
  }

  std::vector<double> ReferenceOf(int pos) const {
    std::vector<double> out(s_.gqa_group * s_.rank_v, 0);
    for (int h = 0; h < s_.gqa_group; ++h) {
      const std::vector<double> weights = WeightsOf(pos, h);
      for (int p = 0; p <= pos; ++p) {
        for (int r = 0; r < s_.rank_v; ++r) {
          out[h * s_.rank_v + r] += weights[p] * v_.values[int64_t{p} * s_.rank_v + r];
        }
      }
    }
    return out;
  }

  // What the step's tokens from first_token on attend to, for every entry of the blocks.
  std::vector<double> MassReference(int first_token) const {
    std::vector<double> mass(std::max(0, s_.n_total - s_.n_sink));
    for (int pos = s_.n_total - s_.n_tokens + first_token; pos < s_.n_total; ++pos) {
      for (int h = 0; h < s_.gqa_group; ++h) {
        const std::vector<double> weights = WeightsOf(pos, h);
        for (int p = s_.n_sink; p <= pos; ++p) mass[p - s_.n_sink] += weights[p];
      }
    }
    return mass;
  }

  // Absolute: values have unit variance and weights sum to 1.
  void ExpectMatchesReference(double tolerance, const std::string& what) const {
    const int n_checked = std::min(s_.n_tokens, 24);  // spread over the step, both ends included
    for (int i = 0; i < n_checked; ++i) {
      const int token = n_checked == 1 ? 0 : i * (s_.n_tokens - 1) / (n_checked - 1);
      const int pos = s_.n_total - s_.n_tokens + token;
      const std::vector<float> got = OutputOf(pos);
      const std::vector<double> want = ReferenceOf(pos);
      for (size_t j = 0; j < got.size(); ++j) {
        ASSERT_NEAR(got[j], want[j], tolerance) << what << ", position " << pos << ", value " << j;
      }
    }
  }

  const HeadShape& shape() const { return s_; }

 private:
  Rows RowsOf(int64_t n_rows, int n_dims, double sigma) {
    return RowsIn(block_shape_.row_type, n_rows, n_dims, sigma);
  }
  Rows RowsIn(DType type, int64_t n_rows, int n_dims, double sigma) {
    Rows rows(n_rows * n_dims, type);
    rows.Fill(sigma, random_);
    return rows;
  }

  // Entries in blocks that lie in reverse order; slots that hold none are NaN.
  void Store() {
    const int n_entries = std::max(0, s_.n_total - s_.n_sink);
    const int n_blocks = (n_entries + kBlockSize - 1) / kBlockSize;
    const int64_t block_bytes = BlockBytes(block_shape_);
    const std::vector<std::byte> nothing(n_blocks * block_bytes, std::byte{0xff});
    const ObjectId memory = Stored(nothing).object;
    stored_sink_k_ = Stored(sink_k_.bytes);
    stored_sink_v_ = Stored(v_.bytes);
    const CpuAccess access(device_);
    for (int b = 0; b < n_blocks; ++b) {
      const int64_t place = (n_blocks - 1 - b) * block_bytes / kDeviceAlignment;
      blocks_.push_back({memory.region, static_cast<uint32_t>(place)});
      GetAttendKernels(Isa::kScalar, block_shape_.row_type)
          .append({.shape = block_shape_,
                   .block = access.At(blocks_.back()),
                   .n_rows = std::min(kBlockSize, n_entries - b * kBlockSize),
                   .k = k_.at((s_.n_sink + int64_t{b} * kBlockSize) * s_.rank_k),
                   .k_stride = s_.rank_k,
                   .v = v_.at((s_.n_sink + int64_t{b} * kBlockSize) * s_.rank_v),
                   .v_stride = s_.rank_v});
    }
  }

  // A region of its own with these bytes, or one byte where there are none.
  ObjectPlace Stored(std::span<const std::byte> bytes) {
    const auto n_bytes = static_cast<int64_t>(bytes.size());
    const ObjectPlace place = {{device_.Allocate(std::max<int64_t>(1, n_bytes)), 0}};
    device_.Upload(place, bytes);
    return place;
  }

  CpuDevice device_;
  HeadShape s_;
  BlockShape block_shape_;
  Random random_;
  Rows q_, q_full_, k_, v_, sink_k_;
  int64_t out_stride_;
  Rows out_;
  Rows sink_logits_, lost_;
  std::vector<ObjectId> blocks_;
  ObjectPlace stored_sink_k_, stored_sink_v_;
};

using Batch = std::vector<std::unique_ptr<Head>>;

Batch MakeBatch(const std::vector<HeadShape>& shapes, DType row_type) {
  Batch batch;
  for (size_t i = 0; i < shapes.size(); ++i) {
    batch.push_back(std::make_unique<Head>(shapes[i], row_type, 1000 + i));
  }
  return batch;
}

// All jobs have one cap.
void RunBatch(const Batch& batch, Attention* attention, Schedule schedule) {
  std::vector<HeadJob> jobs;
  for (const auto& head : batch) {
    head->Poison();
    jobs.push_back(head->Step());
  }
  const ScoreRule rule = {kSmScale, batch[0]->shape().score_cap};
  ASSERT_TRUE(attention->Run(jobs, rule, schedule).ok());
}

// Prefill chunks and decode tokens, long and short, with and without sinks, of every shape.
std::vector<HeadShape> RaggedShapes() {
  return {
      {.rank_k = 64, .rank_v = 48, .gqa_group = 2, .n_total = 1500, .n_tokens = 1, .n_sink = 4},
      {.rank_k = 16, .rank_v = 64, .gqa_group = 2, .n_total = 2100, .n_tokens = 1},
      {.rank_k = 48, .rank_v = 16, .gqa_group = 4, .n_total = 300, .n_tokens = 300, .n_sink = 4},
      {.rank_k = 32, .rank_v = 32, .gqa_group = 1, .n_total = 1, .n_tokens = 1},
      {.rank_k = 32, .rank_v = 32, .gqa_group = 1, .n_total = 1, .n_tokens = 1, .n_sink = 4},
      {.rank_k = 64, .rank_v = 64, .gqa_group = 3, .n_total = 3, .n_tokens = 2, .n_sink = 4},
      {.rank_k = 64, .rank_v = 64, .gqa_group = 8, .n_total = 700, .n_tokens = 130, .n_sink = 1},
      {.rank_k = 16, .rank_v = 16, .gqa_group = 7, .n_total = 65, .n_tokens = 64},
      {.rank_k = 64, .rank_v = 64, .gqa_group = 1, .n_total = 1900, .n_tokens = 3, .n_sink = 64},
  };
}

constexpr Schedule kSchedules[] = {Schedule::kStatic, Schedule::kLpt, Schedule::kBalanced};

TEST(AttentionTest, F32MatchesReferenceForAllInstructionSetsSchedulesAndWorkerCounts) {
  const Batch batch = MakeBatch(RaggedShapes(), DType::kF32);
  for (int n_workers : {1, 2, 3, 7}) {
    ThreadPool pool(n_workers);
    for (Isa isa : AvailableIsas()) {
      Attention attention(&pool, isa, &Memory(), &NoResidents());
      for (Schedule schedule : kSchedules) {
        RunBatch(batch, &attention, schedule);
        for (size_t i = 0; i < batch.size(); ++i) {
          batch[i]->ExpectMatchesReference(
              1e-5, fmt::format("{}, {} workers, schedule {}, job {}", IsaName(isa), n_workers,
                                static_cast<int>(schedule), i));
        }
      }
    }
  }
}

// Probabilities and the output are rounded to 8 bits; queries of twice the usual size make the
// largest weights large.
TEST(AttentionTest, Bf16MatchesReferenceOnEveryInstructionSet) {
  const Batch batch = MakeBatch(RaggedShapes(), DType::kBf16);
  ThreadPool pool(3);
  for (Isa isa : AvailableIsas()) {
    Attention attention(&pool, isa, &Memory(), &NoResidents());
    RunBatch(batch, &attention, Schedule::kBalanced);
    for (size_t i = 0; i < batch.size(); ++i) {
      batch[i]->ExpectMatchesReference(0.02, fmt::format("{}, job {}", IsaName(isa), i));
    }
  }
}

TEST(AttentionTest, LongDecodeSplitOverManyWorkersMatchesReference) {
  const Batch batch = MakeBatch(
      {{.rank_k = 48, .rank_v = 32, .gqa_group = 4, .n_total = 6000, .n_tokens = 1, .n_sink = 4}},
      DType::kF32);
  ThreadPool pool(9);
  Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
  RunBatch(batch, &attention, Schedule::kBalanced);
  batch[0]->ExpectMatchesReference(1e-5, "split nine times");
}

TEST(AttentionTest, WindowsMatchReferenceAlsoWhereTheyLeaveTheSinkBehind) {
  for (int window : {1, 3, 64, 200, 1000}) {
    std::vector<HeadShape> shapes = RaggedShapes();
    for (HeadShape& shape : shapes) shape.window = window;
    const Batch batch = MakeBatch(shapes, DType::kF32);
    for (int n_workers : {1, 3}) {
      ThreadPool pool(n_workers);
      Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
      RunBatch(batch, &attention, Schedule::kBalanced);
      for (size_t i = 0; i < batch.size(); ++i) {
        batch[i]->ExpectMatchesReference(1e-5, fmt::format("window {}, job {}", window, i));
      }
    }
  }
}

// Keys that have lost a row, which sink logits and caps have to make up for.
TEST(AttentionTest, SinkLogitsAndCapsMatchReference) {
  for (const float cap : {0.0f, 2.0f}) {
    std::vector<HeadShape> shapes = RaggedShapes();
    for (size_t i = 0; i < shapes.size(); ++i) {
      shapes[i].score_cap = cap;
      shapes[i].has_sink_logits = i % 3 != 0 || cap == 0;
      shapes[i].loses_keys = i % 4 != 1;
      if (i % 4 == 2) shapes[i].window = 100;
    }
    for (const DType row_type : {DType::kF32, DType::kBf16}) {
      const Batch batch = MakeBatch(shapes, row_type);
      for (const Isa isa : AvailableIsas()) {
        for (const int n_workers : {1, 3}) {
          ThreadPool pool(n_workers);
          Attention attention(&pool, isa, &Memory(), &NoResidents());
          RunBatch(batch, &attention, Schedule::kBalanced);
          for (size_t i = 0; i < batch.size(); ++i) {
            batch[i]->ExpectMatchesReference(
                row_type == DType::kF32 ? 2e-5 : 0.02,
                fmt::format("{} {}, cap {}, job {}", IsaName(isa), DTypeName(row_type), cap, i));
          }
        }
      }
    }
  }
}

// Jobs of the same step, some of which ask for the attention that their entries get.
TEST(AttentionTest, SumsTheAttentionOfEntries) {
  std::vector<HeadShape> shapes = RaggedShapes();
  for (size_t i = 0; i < shapes.size(); ++i) shapes[i].has_sink_logits = i % 2 == 0;
  for (size_t i = 0; i < shapes.size(); ++i) shapes[i].loses_keys = i % 4 < 2;
  for (int n_workers : {1, 3, 8}) {
    for (HeadShape& shape : shapes) shape.score_cap = n_workers == 3 ? 2 : 0;
    const Batch batch = MakeBatch(shapes, DType::kF32);
    for (Schedule schedule : kSchedules) {
      ThreadPool pool(n_workers);
      Attention attention(&pool, AvailableIsas().back(), &Memory(), &NoResidents());
      std::vector<HeadJob> jobs;
      for (size_t i = 0; i < batch.size(); ++i) {
        batch[i]->Poison();
        HeadJob& job = jobs.emplace_back(batch[i]->Step());
        if (i == 1) continue;
        const int64_t n_bytes = (job.n_entries / kBlockSize + 1) * EntryTable::BlockBytes(true);
        job.scored = {.object = {job.device->Allocate(n_bytes), 0}, .has_sums = true};
        job.first_scored = i % 3 == 0 ? 0 : job.n_tokens / 3 * 2;
      }
      ASSERT_TRUE(attention.Run(jobs, {kSmScale, shapes[0].score_cap}, schedule).ok());
      for (size_t i = 0; i < batch.size(); ++i) {
        const std::string what = fmt::format("{} workers, schedule {}, job {}", n_workers,
                                             static_cast<int>(schedule), i);
        batch[i]->ExpectMatchesReference(1e-5, what);
        if (jobs[i].scored.empty()) continue;
        const std::vector<double> want = batch[i]->MassReference(jobs[i].first_scored);
        const CpuAccess access(*jobs[i].device);
        const EntryTable table = EntryTableAt(access, jobs[i].scored);
        for (size_t e = 0; e < want.size(); ++e) {
          ASSERT_NEAR(table.sum(e) * kScoreUnit, want[e], 1e-5 * (1 + want[e]))
              << what << " entry " << e;
        }
      }
    }
  }
}

TEST(AttentionTest, BatchedEqualsSingle) {
  const Batch batch = MakeBatch(RaggedShapes(), DType::kF32);
  ThreadPool pool(2);
  Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
  RunBatch(batch, &attention, Schedule::kBalanced);
  std::vector<std::vector<float>> together;
  for (const auto& head : batch) together.push_back(head->Outputs());
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i]->Poison();
    const HeadJob job = batch[i]->Step();
    ASSERT_TRUE(attention.Run({&job, 1}, {kSmScale}, Schedule::kBalanced).ok());
    const std::vector<float> alone = batch[i]->Outputs();
    for (size_t j = 0; j < alone.size(); ++j) ASSERT_NEAR(alone[j], together[i][j], 1e-5) << i;
  }
}

TEST(AttentionTest, ChunkedPrefillEqualsWhole) {
  for (int n_sink : {0, 4}) {
    Head head({.rank_k = 48,
               .rank_v = 32,
               .gqa_group = 2,
               .n_total = 500,
               .n_tokens = 500,
               .n_sink = n_sink},
              DType::kF32, 3);
    ThreadPool pool(2);
    Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
    const HeadJob whole_job = head.Step();
    ASSERT_TRUE(attention.Run({&whole_job, 1}, {kSmScale}, Schedule::kBalanced).ok());
    const std::vector<float> whole = head.Outputs();
    head.Poison();
    // The first chunks end inside the sink, at a block boundary, and one past it.
    const int ends[] = {1, 3, 64, 65, 68, 133, 499, 500};
    int first = 0;
    for (int end : ends) {
      const HeadJob job = head.Step(end, end - first);
      ASSERT_TRUE(attention.Run({&job, 1}, {kSmScale}, Schedule::kBalanced).ok());
      first = end;
    }
    const std::vector<float> chunked = head.Outputs();
    for (size_t j = 0; j < whole.size(); ++j) ASSERT_NEAR(chunked[j], whole[j], 1e-5) << n_sink;
    head.ExpectMatchesReference(1e-5, "chunked");
  }
}

TEST(AttentionTest, RowsThatSeeNothingGiveZeros) {
  Head head({.rank_k = 32, .rank_v = 32, .gqa_group = 2, .n_total = 80, .n_tokens = 80},
            DType::kF32, 4);
  ThreadPool pool(2);
  Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
  HeadJob job = head.Step();
  job.first_visible = -9;  // tokens 0 to 9 see nothing
  ASSERT_TRUE(attention.Run({&job, 1}, {kSmScale}, Schedule::kBalanced).ok());
  for (int pos = 0; pos < 10; ++pos) {
    for (float x : head.OutputOf(pos)) EXPECT_EQ(x, 0) << pos;
  }
  for (float x : head.OutputOf(10)) EXPECT_NE(x, 0);
}

TEST(AttentionTest, WritesNothingBetweenOutputRows) {
  Head head({.rank_k = 32, .rank_v = 32, .gqa_group = 2, .n_total = 80, .n_tokens = 80},
            DType::kF32, 4);
  ThreadPool pool(2);
  Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
  const HeadJob job = head.Step();
  ASSERT_TRUE(attention.Run({&job, 1}, {kSmScale}, Schedule::kBalanced).ok());
  for (int t = 0; t < 80; ++t) {
    const float* row = CpuAccess(Memory()).As<const float>(job.out) + t * job.out_stride;
    for (int64_t i = 2 * 32; i < job.out_stride; ++i) EXPECT_TRUE(std::isnan(row[i])) << t;
  }
}

// Bit for bit, whatever the batch, the workers and the cut into steps.
TEST(AttentionTest, DeterministicRowsAreThoseOfTokensAlone) {
  for (DType row_type : {DType::kBf16, DType::kF32}) {
    const Batch batch = MakeBatch(RaggedShapes(), row_type);
    for (Isa isa : AvailableIsas()) {
      ThreadPool one_thread(1);
      Attention one_by_one(&one_thread, isa, &Memory(), &NoResidents());
      one_by_one.set_deterministic(true);
      std::vector<std::vector<float>> alone;
      for (const auto& head : batch) {
        head->Poison();
        const int n_total = head->shape().n_total;
        for (int end = n_total - head->shape().n_tokens + 1; end <= n_total; ++end) {
          const HeadJob job = head->Step(end, 1);
          ASSERT_TRUE(one_by_one.Run({&job, 1}, {kSmScale}, Schedule::kBalanced).ok());
        }
        alone.push_back(head->Outputs());
      }
      ThreadPool pool(3);
      Attention attention(&pool, isa, &Memory(), &NoResidents());
      attention.set_deterministic(true);
      for (Schedule schedule : kSchedules) {
        RunBatch(batch, &attention, schedule);
        for (size_t i = 0; i < batch.size(); ++i) {
          EXPECT_EQ(batch[i]->Outputs(), alone[i])
              << fmt::format("{} {}, schedule {}, job {}", IsaName(isa), DTypeName(row_type),
                             static_cast<int>(schedule), i);
        }
      }
    }
  }
}

TEST(AttentionTest, NoJobsIsNoWork) {
  ThreadPool pool(2);
  Attention attention(&pool, Isa::kScalar, &Memory(), &NoResidents());
  ASSERT_TRUE(attention.Run({}, {kSmScale}, Schedule::kBalanced).ok());
}

}  // namespace
}  // namespace kvlathe

// Jobs of many rows on a GPU against the attention of the CPU.
#include "cuda/attention/prompt_items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/kernels/testing/attend_problem.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "cpu/memory/cpu_device.h"
#include "format/entry_table.h"
#include "format/keys.h"
#include "format/mean_angles.h"

namespace kvlathe {
namespace {

struct JobCase {
  const char* name;
  int n_tokens = 40, gqa_group = 3;
  int n_entries = 700;
  int window = 0;
  int n_sinks = 0;
  int sink_width = 0;
  int n_sealed = 0;  // blocks of split bits, if any
  DType out_type = DType::kBf16;
  int out_head_stride = 0;
  PromptLimits limits = {};
  bool has_frames = false;
  int n_pairs = 0;  // of keys that have lost a mean
  int n_joined = 1;
  bool has_latents = false;
  bool keeps_positions = false;  // of entries
  int n_slices = 1;              // that share latents: 1 or both heads
  int first_scored = -1;         // token, if any votes
  bool has_noise = false;
  bool has_sink_logits = false, loses_keys = false;
  float score_cap = 0;
};

using PromptItemsTest = ::testing::TestWithParam<JobCase>;

constexpr int kHeadDim = 64;
constexpr int kHalf = 24;         // pairs that turn
constexpr int kFirstPlace = 128;  // of blocks in their frame, behind four sinks
constexpr int kFirstPosition = kFirstPlace + 4;
constexpr double kAmplitude = 1.25;

std::vector<double> Frequencies() {
  std::vector<double> all;
  for (int i = 0; i < kHalf; ++i) all.push_back(std::pow(500.0, -double{i} / kHalf));
  return all;
}

constexpr int kPositions = 1000;

// Two heads of a layer in the memory of a device, drawn alike whatever the device.
class JobsOnDevice {
 public:
  JobsOnDevice(Device* memory, Residents* residents, const JobCase& c)
      : memory_(*memory), residents_(*residents), c_(c), sink_dim_(c.n_joined * kHeadDim) {
    const int n_heads = 2;
    ids_.resize(n_heads);
    for (int g = 0; g < n_heads; ++g) AddHead(g);
    if (c.n_slices == 1) return;
    for (const HeadJob& job : jobs_) slices_.push_back({job.blocks, job.packed, job.sinks.v});
    for (HeadJob& job : jobs_) job.latents.slices = slices_;
  }

  std::span<const HeadJob> jobs() const { return jobs_; }
  std::vector<float> Outputs() const {
    std::vector<float> all;
    for (const HeadJob& job : jobs_) {
      const int64_t n = job.n_tokens * job.out_stride;
      std::vector<std::byte> bytes(n * SizeOf(job.out_type));
      memory_.Download(job.out, bytes);
      std::vector<float> floats(n);
      ConvertToFloat(job.out_type, bytes.data(), n, floats.data());
      all.insert(all.end(), floats.begin(), floats.end());
    }
    return all;
  }
  // The sums of votes of all entries.
  std::vector<double> Votes() const {
    std::vector<double> votes;
    for (const HeadJob& job : jobs_) {
      if (job.scored.empty()) continue;
      std::vector<std::byte> bytes(TableBytes(job));
      memory_.Download({.object = job.scored.object}, bytes);
      const EntryTable table(bytes.data(), true);
      for (int e = 0; e < job.n_entries; ++e) {
        votes.push_back(static_cast<double>(table.sum(e)) * kScoreUnit);
      }
    }
    return votes;
  }
  // The largest number of V.
  double most_value() const { return most_value_; }

 private:
  struct Head {
    std::unique_ptr<SplitProblem> split;
    std::vector<ObjectId> blocks;
    std::vector<SealedRun> runs;
    std::vector<Weight> weights;
    std::vector<WeightId> maps, keys;
    Resident<LatentMapId> map;
  };

  ObjectPlace Placed(const std::byte* from, int64_t n_bytes) {
    const ObjectPlace place = {{.region = memory_.Allocate(n_bytes)}};
    memory_.Upload(place, {from, static_cast<size_t>(n_bytes)});
    return place;
  }
  ObjectPlace Placed(const std::vector<float>& floats) {
    return Placed(reinterpret_cast<const std::byte*>(floats.data()),
                  std::ssize(floats) * int64_t{sizeof(float)});
  }
  ObjectPlace Drawn(int64_t n, uint64_t seed) {
    Random random(seed);
    const StoredRows rows = RandomRows(n, DType::kBf16, 1, 0.2, random);
    for (const double x : rows.values) most_value_ = std::max(most_value_, std::abs(x));
    return Placed(rows.bytes.data(), std::ssize(rows.bytes));
  }

  void AddHead(int g) {
    const uint64_t seed = 10 * g;
    Head& head = ids_[g];
    HeadJob job = {.device = &memory_,
                   .shape = {.rank_k = c_.n_slices > 1 ? 48 : 48 + 32 * g, .rank_v = 64}};
    if (c_.n_sealed > 0) {
      AddSealed(&head, &job, seed);
    } else {
      for (int b = 0; b * kBlockSize < c_.n_entries; ++b) {
        head.blocks.push_back(
            Drawn(BlockBytes(job.shape) / 2, seed + 100 + static_cast<uint64_t>(b)).object);
      }
      job.n_entries = c_.n_entries;
    }
    job.shape.sink_rank_v = c_.sink_width;
    job.head_dim = sink_dim_;
    job.gqa_group = c_.gqa_group;
    job.n_tokens = c_.n_tokens;
    const int64_t n_rows = int64_t{c_.n_tokens} * c_.gqa_group;
    job.q_stride = job.shape.rank_k;
    job.q = Drawn(n_rows * job.q_stride, seed + 1);
    job.q_full_stride = sink_dim_;
    job.q_full = DrawnQueries(n_rows, seed + 2);
    job.blocks = head.blocks;
    job.first_visible = job.n_entries - c_.n_tokens + 1;
    job.window = c_.window;
    if (c_.n_sinks > 0) {
      job.sinks = {.k = Drawn(c_.n_sinks * sink_dim_, seed + 3),
                   .v = Drawn(c_.n_sinks * job.output_width(), seed + 4),
                   .n = c_.n_sinks,
                   .first_visible = job.first_visible + c_.n_sinks,
                   .window = c_.window};
    }
    if (c_.has_sink_logits) {
      Random random(seed + 7);
      std::vector<float> logits(c_.gqa_group);
      for (float& logit : logits) logit = static_cast<float>(3 * random.Normal());
      job.sink_logits = Placed(logits);
    }
    if (c_.loses_keys) {
      Random random(seed + 8);
      std::vector<float> lost(sink_dim_);
      for (float& x : lost) x = static_cast<float>(0.5 * random.Normal());
      job.lost_keys = Placed(lost);
    }
    job.out_type = c_.out_type;
    job.out_head_stride = c_.out_head_stride;
    const int head_stride = std::max(c_.n_slices * job.output_width(), c_.out_head_stride);
    job.out_stride = c_.gqa_group * head_stride;
    const std::vector<std::byte> nothing(c_.n_tokens * job.out_stride * SizeOf(c_.out_type));
    job.out = Placed(nothing.data(), std::ssize(nothing));
    if (c_.has_frames || c_.n_pairs > 0) AddFrames(&head, &job, seed);
    if (c_.has_latents) AddLatents(&head, &job, seed);
    if (c_.first_scored >= 0) AddTable(&job);
    jobs_.push_back(job);
  }

  static int64_t TableBytes(const HeadJob& job) {
    return (job.n_entries + kBlockSize - 1) / kBlockSize * EntryTable::BlockBytes(true);
  }
  void AddTable(HeadJob* job) {
    std::vector<std::byte> table(TableBytes(*job));
    const EntryTable entries(table.data(), true);
    for (int e = 0; e < job->n_entries; ++e) entries.position(e) = e;
    job->scored = {.object = Placed(table.data(), std::ssize(table)).object, .has_sums = true};
    job->first_scored = c_.first_scored;
    if (c_.has_noise) job->noise = &noise_;
  }

  // Each has the numbers of one KV head of the model, and zeros for the others.
  ObjectPlace DrawnQueries(int64_t n_rows, uint64_t seed) {
    Random random(seed);
    StoredRows rows = RandomRows(n_rows * sink_dim_, DType::kBf16, 1, 0, random);
    const int group = c_.gqa_group / c_.n_joined;
    for (int64_t i = 0; i < n_rows * sink_dim_; ++i) {
      const int64_t owner = i / sink_dim_ % c_.gqa_group / group;
      if (i % sink_dim_ / kHeadDim != owner) rows.Set(i, 0);
    }
    return Placed(rows.bytes.data(), std::ssize(rows.bytes));
  }

  // Cosines and sines of all positions, by pair.
  static std::vector<float> Angles(double (*function)(double)) {
    std::vector<float> angles;
    for (int position = 0; position < kPositions; ++position) {
      for (const double frequency : Frequencies()) {
        angles.push_back(static_cast<float>(kAmplitude * function(position * frequency)));
      }
    }
    return angles;
  }
  // The same in the order of KeyRotation.
  static std::vector<float> BlockAngles(const std::vector<float>& angles) {
    std::vector<float> blocks(15 * kBlockSize * kHalf);
    for (int entry = 0; entry < 15 * kBlockSize; ++entry) {
      for (int i = 0; i < kHalf; ++i) {
        blocks[entry / kBlockSize * kBlockSize * kHalf + KeyOffset(entry % kBlockSize, i)] =
            angles[entry * kHalf + i];
      }
    }
    return blocks;
  }

  void AddLatents(Head* head, HeadJob* job, uint64_t seed) {
    Random random(seed + 6);
    const int rank = c_.n_slices * job->shape.rank_k;
    std::vector<float> back(static_cast<size_t>(rank) * sink_dim_), offset(sink_dim_);
    for (float& x : back) x = static_cast<float>(random.Normal() / std::sqrt(rank));
    for (float& x : offset) x = static_cast<float>(0.3 * random.Normal());
    head->map = {&residents_, residents_.AddLatentMap(
                                  LatentMap(back, offset, sink_dim_, kHeadDim, DType::kBf16))};
    const std::vector<float> cos = Angles(std::cos), sin = Angles(std::sin);
    job->latents = {.map = head->map.id(),
                    .key_dim = sink_dim_,
                    .rotation = {.cos = Placed(BlockAngles(cos)),
                                 .sin = Placed(BlockAngles(sin)),
                                 .half = kHalf,
                                 .way_back = 1 / (kAmplitude * kAmplitude)}};
    job->q = job->q_full;
    job->q_stride = job->q_full_stride;
    if (!c_.keeps_positions) return;
    const int n_blocks = (job->n_entries + kBlockSize - 1) / kBlockSize;
    std::vector<std::byte> table(n_blocks * EntryTable::BlockBytes(true));
    const EntryTable entries(table.data(), true);
    for (int entry = 0; entry < job->n_entries; ++entry) {
      entries.position(entry) = entry + entry / 7;
    }
    std::vector<uint16_t> sorted(2 * kBlockSize);
    for (int entry = 0; entry < 2 * kBlockSize; ++entry) sorted[entry] = (entry * 5) % 140;
    job->latents.positions = {.object = Placed(table.data(), std::ssize(table)).object,
                              .has_sums = true};
    job->latents.sorted = {
        .object = Placed(reinterpret_cast<const std::byte*>(sorted.data()), 4 * kBlockSize).object,
        .n_blocks = 2};
    job->latents.cos = Placed(cos);
    job->latents.sin = Placed(sin);
  }

  WeightId AddMap(Head* head, int64_t n_out, int64_t n_in, const std::vector<float>& rows) {
    head->weights.push_back(Weight::Create(&residents_, n_out, n_in, WeightType::kBf16).value());
    head->weights.back().WriteRows(0, n_out, DType::kF32, rows.data(), n_in);
    return head->weights.back().id();
  }

  // A way back F of keys, and queries q F.
  void AddFrames(Head* head, HeadJob* job, uint64_t seed) {
    Random random(seed + 5);
    const auto drawn = [&](int64_t n, double sigma) {
      std::vector<float> floats(n);
      for (float& x : floats) x = static_cast<float>(sigma * random.Normal());
      return floats;
    };
    const int rank = job->shape.rank_k;
    for (int map = 0; map < c_.n_joined; ++map) {
      const std::vector<float> back = drawn(kHeadDim * rank, 1 / std::sqrt(rank));
      std::vector<float> of_queries(back.size());
      for (int d = 0; d < kHeadDim; ++d) {
        for (int r = 0; r < rank; ++r) of_queries[r * kHeadDim + d] = back[d * rank + r];
      }
      head->keys.push_back(AddMap(head, kHeadDim, rank, back));
      head->maps.push_back(AddMap(head, rank, kHeadDim, of_queries));
    }
    const std::vector<double> frequencies = Frequencies();
    job->frames = {.n_joined = c_.n_joined,
                   .turning_mean = Placed(drawn(c_.n_joined * kHeadDim, 0.3)),
                   .n_pairs = c_.n_pairs,
                   .cos = Placed(Angles(std::cos)),
                   .sin = Placed(Angles(std::sin)),
                   .half = kHalf,
                   .n_absolute = AbsolutePairs(frequencies),
                   .way_back = static_cast<float>(1 / (kAmplitude * kAmplitude)),
                   .head_dim = kHeadDim,
                   .first_position = kFirstPosition,
                   .first_place = kFirstPlace};
    if (c_.n_pairs > 0) {
      job->frames.mean_angles =
          Placed(MakeMeanAngles(std::span(frequencies).first(c_.n_pairs), kAmplitude));
    }
    job->rebuilt = {.keys = head->keys, .head_dim = kHeadDim};
    if (!c_.has_frames) {  // queries are mapped before
      AddMappedQueries(*head, job);
      return;
    }
    job->frames.maps = head->maps;
    job->frames.key_offset = Placed(drawn(c_.n_joined * kHeadDim, 0.3));
  }

  void AddMappedQueries(const Head& head, HeadJob* job) {
    const int64_t n_rows = int64_t{c_.n_tokens} * c_.gqa_group;
    const int rank = job->shape.rank_k, group = c_.gqa_group / c_.n_joined;
    std::vector<Bf16> whole(n_rows * sink_dim_), mapped(n_rows * rank);
    memory_.Download(job->q_full, std::as_writable_bytes(std::span(whole)));
    for (int64_t row = 0; row < n_rows; ++row) {
      const int64_t map = row % c_.gqa_group / group;
      std::vector<float> w(static_cast<size_t>(rank) * kHeadDim);
      head.weights[2 * map + 1].ReadRows(0, rank, w.data());
      for (int r = 0; r < rank; ++r) {
        float sum = 0;
        for (int d = 0; d < kHeadDim; ++d) {
          sum += ToFloat(whole[row * sink_dim_ + map * kHeadDim + d]) * w[r * kHeadDim + d];
        }
        mapped[row * rank + r] = ToBf16(sum);
      }
    }
    job->q = Placed(reinterpret_cast<const std::byte*>(mapped.data()), 2 * std::ssize(mapped));
  }

  // Sealed blocks, and coded rows behind them.
  void AddSealed(Head* head, HeadJob* job, uint64_t seed) {
    const SplitHead split = {.k_channels = {16, 16, 16, 0, 16, 16},
                             .v_channels = {0, 16, 32, 16, 16, 16},
                             .n_blocks = c_.n_sealed,
                             .n_plain = c_.n_entries - c_.n_sealed * kBlockSize,
                             .has_coded_rows = true,
                             .has_token_scales = true};
    head->split = std::make_unique<SplitProblem>(split, DType::kBf16, seed);
    SplitProblem& p = *head->split;
    EXPECT_TRUE(p.Seal(Isa::kScalar).ok());
    p.UsePacked();
    job->shape = p.shape;
    for (int b = 0; b < static_cast<int>(p.blocks.size()); ++b) {
      const int64_t n_bytes = b < c_.n_sealed ? PackedBlockBytes(p.packed_shape)
                                              : OpenBlockBytes(p.format.codec, p.shape);
      head->blocks.push_back(Placed(p.blocks[b], n_bytes).object);
    }
    for (const float x : p.v) most_value_ = std::max(most_value_, double{std::abs(x)});
    head->runs = {{.n_blocks = c_.n_sealed}};
    job->n_entries = c_.n_entries;
    job->packed = {.format = p.format,
                   .storage = p.bits,
                   .layer_rank_v = p.shape.rank_v,
                   .runs = head->runs,
                   .open = {.first_block = c_.n_sealed,
                            .n_blocks = static_cast<int>(p.blocks.size()) - c_.n_sealed}};
  }

  Device& memory_;
  Residents& residents_;
  const JobCase& c_;
  int sink_dim_;
  std::vector<Head> ids_;
  std::vector<HeadJob> jobs_;
  std::vector<LatentSliceIds> slices_;
  ScoreNoise noise_ = {.key = 77,
                       .first_head = 2,
                       .first_position = 9,
                       .temperature = 1.2f,
                       .temperature_step = 0.01f,
                       .max_temperature = 1.5f};
  double most_value_ = 0;
};

struct CpuResult {
  std::vector<float> outputs;
  std::vector<double> votes;
};
CpuResult OnCpu(const JobCase& c, const ScoreRule& rule) {
  CpuDevice memory;
  CpuResidents residents(&memory);
  ThreadPool threads(1);
  const JobsOnDevice on_cpu(&memory, &residents, c);
  Attention attention(&threads, Isa::kScalar, &memory, &residents);
  EXPECT_TRUE(attention.Run(on_cpu.jobs(), rule, Schedule::kLpt).ok());
  return {on_cpu.Outputs(), on_cpu.Votes()};
}

TEST_P(PromptItemsTest, IsTheAttentionOfTheCpu) {
  const JobCase& c = GetParam();
  const ScoreRule rule = {.scale = 0.125f, .cap = c.score_cap};
  const CpuResult of_cpu = OnCpu(c, rule);
  const std::vector<float>& want = of_cpu.outputs;
  const std::unique_ptr<CudaStream> stream = CudaStream::Create().value();
  const std::unique_ptr<CudaDevice> memory = CudaDevice::Create(stream.get(), 32 << 20).value();
  CpuDevice host;
  CpuResidents of_host(&host);
  CudaResidents residents(memory.get(), &of_host);
  PromptItems items(memory.get(), &residents, c.limits);
  const JobsOnDevice on_gpu(memory.get(), &residents, c);
  for (const bool deterministic : {false, true}) {
    items.set_deterministic(deterministic);
    for (const HeadJob& job : on_gpu.jobs()) ASSERT_TRUE(items.Takes(job));
    items.Attend(on_gpu.jobs(), rule);
    ASSERT_TRUE(stream->Finish().ok());
    const std::vector<float> got = on_gpu.Outputs();
    ASSERT_EQ(got.size(), want.size());
    // Weights, values and the output itself are rounded to Bf16 on the GPU, 2^-8 of the largest
    // value at most each, and numbers of K that move scores by as much.
    const double allowed = 0x1p-6 * on_gpu.most_value();
    double error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], allowed) << i;
      error += std::abs(got[i] - want[i]);
    }
    EXPECT_LT(error / static_cast<double>(got.size()), allowed / 16);
    const std::vector<double> votes = on_gpu.Votes();
    const int n_times = deterministic ? 2 : 1;  // so far
    for (size_t e = 0; e < votes.size(); ++e) {
      const double each = of_cpu.votes[e];
      ASSERT_NEAR(votes[e] / n_times, each, 0.02 * each + 1e-5) << "entry " << e;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, PromptItemsTest,
    ::testing::Values(
        JobCase{.name = "Plain"}, JobCase{.name = "Sinks", .n_sinks = 4},
        JobCase{.name = "WideSinks",
                .window = 130,
                .n_sinks = 70,
                .sink_width = 96,
                .out_head_stride = 100},
        JobCase{.name = "OneToken", .n_tokens = 1, .n_entries = 1500},
        JobCase{.name = "WholePrompt",
                .n_tokens = 150,
                .gqa_group = 1,
                .n_entries = 150,
                .out_type = DType::kF32},
        JobCase{.name = "FewProcessors", .limits = {.n_processors = 1}},
        JobCase{.name = "Sealed", .n_entries = 420, .n_sinks = 4, .n_sealed = 5},
        JobCase{.name = "Frames", .n_sinks = 4, .has_frames = true, .n_pairs = 8},
        JobCase{.name = "JoinedFrames",
                .n_tokens = 9,
                .gqa_group = 4,
                .n_entries = 420,
                .window = 300,
                .n_sinks = 4,
                .n_sealed = 5,
                .has_frames = true,
                .n_joined = 2},
        JobCase{.name = "LessMean", .n_tokens = 1, .gqa_group = 2, .n_pairs = 16, .n_joined = 2},
        JobCase{.name = "Votes", .n_entries = 150, .n_sinks = 4, .first_scored = 0},
        JobCase{.name = "VotesOfTheTail",
                .gqa_group = 4,
                .n_entries = 420,
                .n_sealed = 5,
                .n_joined = 2,
                .has_latents = true,
                .first_scored = 33,
                .has_noise = true},
        JobCase{.name = "Latents", .n_sinks = 4, .has_latents = true},
        JobCase{.name = "SinkLogits", .n_sinks = 4, .n_sealed = 5, .has_sink_logits = true},
        JobCase{.name = "LogitsOfKeysLessMean", .has_sink_logits = true, .loses_keys = true},
        JobCase{.name = "Caps",
                .n_sinks = 4,
                .n_sealed = 5,
                .first_scored = 33,
                .has_sink_logits = true,
                .loses_keys = true,
                .score_cap = 1.5f},
        JobCase{.name = "CapsOfFrames",
                .n_sinks = 4,
                .has_frames = true,
                .n_pairs = 8,
                .score_cap = 1.5f},
        JobCase{.name = "CapsOfKeysLessMean",
                .n_tokens = 1,
                .gqa_group = 2,
                .n_pairs = 16,
                .n_joined = 2,
                .has_sink_logits = true,
                .loses_keys = true,
                .score_cap = 1.5f},
        JobCase{.name = "SinkLogitsOfJoinedHeads",
                .gqa_group = 4,
                .n_entries = 420,
                .n_sealed = 5,
                .n_joined = 2,
                .has_latents = true,
                .first_scored = 33,
                .has_sink_logits = true},
        JobCase{.name = "LatentsOfJoinedHeads",
                .gqa_group = 4,
                .n_entries = 420,
                .n_sealed = 5,
                .n_joined = 2,
                .has_latents = true,
                .keeps_positions = true},
        JobCase{.name = "SharedLatents",
                .n_entries = 150,
                .n_sinks = 4,
                .out_head_stride = 140,
                .has_latents = true,
                .n_slices = 2}),
    [](const auto& info) { return info.param.name; });

TEST(PromptItemsRefusalTest, OthersAreNotTaken) {
  const std::unique_ptr<CudaStream> stream = CudaStream::Create().value();
  const std::unique_ptr<CudaDevice> memory = CudaDevice::Create(stream.get(), 1 << 20).value();
  CpuDevice host;
  CpuResidents of_host(&host);
  const CudaResidents residents(memory.get(), &of_host);
  const PromptItems items(memory.get(), &residents, {});
  HeadJob job = {.device = memory.get(), .shape = {.rank_k = 64, .rank_v = 64}};
  EXPECT_TRUE(items.Takes(job));
  job.packed.format.codec = RotatedCodec{};
  EXPECT_FALSE(items.Takes(job));
  job.packed.format.codec = SphereCodec{};
  EXPECT_FALSE(items.Takes(job));
  job.packed.format.codec = BalancedCodec{};
  EXPECT_FALSE(items.Takes(job));
  job.packed.format.codec = RowsCodec{};
  job.shape.row_type = DType::kF32;
  EXPECT_FALSE(items.Takes(job));
  job.shape.row_type = DType::kBf16;
  job.shape.rank_k = 512;
  EXPECT_FALSE(items.Takes(job)) << "99 KiB of shared memory hold no rows of 512 channels";
  job.shape.rank_k = 64;
  job.device = &host;
  EXPECT_FALSE(items.Takes(job));
}

}  // namespace
}  // namespace kvlathe

// Ragged batches of attention on a GPU against that of the CPU, which has tests of its own.
#include "cuda/attention/cuda_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "cpu/memory/cpu_device.h"

namespace kvlathe {
namespace {

constexpr int kHeadDim = 32;
constexpr ScoreRule kRule = {.scale = 0.15f}, kCappedRule = {.scale = 0.15f, .cap = 1.5f};

// A device's memory, and a CPU's, with the same objects in both.
class Memories {
 public:
  Memories()
      : stream(CudaStream::Create().value()),
        gpu(CudaDevice::Create(stream.get(), int64_t{64} << 20).value()),
        host_residents(&cpu) {}

  struct Objects {
    ObjectId on_gpu, on_cpu;
  };
  Objects Put(const void* bytes, int64_t n_bytes) {
    const std::span<const std::byte> from(static_cast<const std::byte*>(bytes), n_bytes);
    const Objects objects = {{gpu->Allocate(std::max<int64_t>(1, n_bytes)), 0},
                             {cpu.Allocate(std::max<int64_t>(1, n_bytes)), 0}};
    gpu->Upload({.object = objects.on_gpu}, from);
    cpu.Upload({.object = objects.on_cpu}, from);
    return objects;
  }

  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<CudaDevice> gpu;
  CpuDevice cpu;
  CpuResidents host_residents;
};

struct JobShape {
  int head_idx;  // of kSplitHeads
  int n_tokens, gqa_group, window, n_sinks;
  bool has_coded_rows;
  int n_plain = 0;  // entries behind the run; 0: those of the head
  bool has_sink_logits = false, loses_keys = false;
};

// The same job for both machines.
struct Job {
  HeadJob on_gpu, on_cpu;
  std::vector<ObjectId> gpu_blocks, cpu_blocks;
  std::vector<SealedRun> gpu_runs, cpu_runs;
  int64_t n_outputs = 0;
};

void SetPlace(const Memories::Objects& objects, ObjectPlace HeadJob::*place, Job* job) {
  job->on_gpu.*place = {.object = objects.on_gpu};
  job->on_cpu.*place = {.object = objects.on_cpu};
}

std::vector<Bf16> DrawnRows(int64_t n, Random* random) {
  std::vector<Bf16> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(ToBf16(static_cast<float>(random->Normal())));
  return rows;
}

std::unique_ptr<Job> MakeJob(const JobShape& shape, uint64_t seed, Memories* memories) {
  SplitHead head = kSplitHeads[shape.head_idx];
  head.has_coded_rows = shape.has_coded_rows;
  if (shape.n_plain > 0) head.n_plain = shape.n_plain;
  SplitProblem problem(head, DType::kBf16, seed);
  KVL_CHECK(problem.Seal(AvailableIsas().back()).ok());
  problem.UsePacked();
  Random random(seed);
  auto job = std::make_unique<Job>();
  for (size_t b = 0; b < problem.blocks.size(); ++b) {
    const bool is_sealed = static_cast<int>(b) < head.n_blocks;
    const Memories::Objects block = memories->Put(
        problem.blocks[b], is_sealed ? PackedBlockBytes(problem.packed_shape)
                                     : OpenBlockBytes(problem.format.codec, problem.shape));
    job->gpu_blocks.push_back(block.on_gpu);
    job->cpu_blocks.push_back(block.on_cpu);
  }
  const int rank_k = problem.shape.rank_k, rank_v = problem.shape.rank_v;
  const int n_entries = static_cast<int>(std::ssize(problem.k)) / rank_k;
  const int64_t n_rows = int64_t{shape.n_tokens} * shape.gqa_group;
  HeadJob& gpu = job->on_gpu;
  // Two runs, as if the head had been sealed twice.
  for (int b = 0; b < head.n_blocks; b += 2) {
    job->gpu_runs.push_back({.first_block = b, .n_blocks = std::min(2, head.n_blocks - b)});
  }
  job->cpu_runs = job->gpu_runs;
  gpu = {.shape = problem.shape,
         .head_dim = kHeadDim,
         .gqa_group = shape.gqa_group,
         .n_tokens = shape.n_tokens,
         .q_stride = rank_k,
         .q_full_stride = kHeadDim,
         .packed = {.format = problem.format,
                    .storage = problem.bits,
                    .layer_rank_v = rank_v,
                    .open = {.first_block = head.n_blocks,
                             .n_blocks =
                                 head.has_coded_rows
                                     ? static_cast<int>(std::ssize(job->gpu_blocks)) - head.n_blocks
                                     : 0}},
         .n_entries = n_entries,
         .first_visible = n_entries - shape.n_tokens + 1,
         .window = shape.window,
         .sinks = {.n = shape.n_sinks, .first_visible = shape.n_sinks},
         .out_type = DType::kF32,
         .out_stride = int64_t{shape.gqa_group} * (rank_v + 8),
         .out_head_stride = rank_v + 8};
  job->on_cpu = gpu;
  gpu.device = memories->gpu.get();
  job->on_cpu.device = &memories->cpu;
  gpu.blocks = job->gpu_blocks;
  job->on_cpu.blocks = job->cpu_blocks;
  gpu.packed.runs = job->gpu_runs;
  job->on_cpu.packed.runs = job->cpu_runs;
  const auto put = [&](int64_t n, auto place_of) {
    const std::vector<Bf16> rows = DrawnRows(n, &random);
    const Memories::Objects objects = memories->Put(rows.data(), n * int64_t{sizeof(Bf16)});
    *place_of(&gpu) = {.object = objects.on_gpu};
    *place_of(&job->on_cpu) = {.object = objects.on_cpu};
  };
  put(n_rows * rank_k, [](HeadJob* of) { return &of->q; });
  put(n_rows * kHeadDim, [](HeadJob* of) { return &of->q_full; });
  put(int64_t{shape.n_sinks} * kHeadDim, [](HeadJob* of) { return &of->sinks.k; });
  put(int64_t{shape.n_sinks} * rank_v, [](HeadJob* of) { return &of->sinks.v; });
  if (shape.has_sink_logits) {
    std::vector<float> logits;
    for (int h = 0; h < shape.gqa_group; ++h) {
      logits.push_back(static_cast<float>(3 * random.Normal()));
    }
    SetPlace(memories->Put(logits.data(), shape.gqa_group * int64_t{sizeof(float)}),
             &HeadJob::sink_logits, job.get());
  }
  if (shape.loses_keys) {
    std::vector<float> lost;
    for (int i = 0; i < kHeadDim; ++i) lost.push_back(static_cast<float>(random.Normal()));
    SetPlace(memories->Put(lost.data(), kHeadDim * int64_t{sizeof(float)}), &HeadJob::lost_keys,
             job.get());
  }
  job->n_outputs = shape.n_tokens * gpu.out_stride;
  const std::vector<float> nothing(job->n_outputs, 99);
  SetPlace(memories->Put(nothing.data(), job->n_outputs * int64_t{sizeof(float)}), &HeadJob::out,
           job.get());
  return job;
}

std::vector<float> OutputsAt(Device* device, const HeadJob& job, int64_t n) {
  std::vector<float> outputs(n);
  device->Download(job.out, std::as_writable_bytes(std::span<float>(outputs)));
  return outputs;
}

constexpr JobShape kShapes[] = {
    {.head_idx = 5,
     .n_tokens = 1,
     .gqa_group = 9,
     .window = 0,
     .n_sinks = 4,
     .has_coded_rows = true},
    {.head_idx = 7,
     .n_tokens = 3,
     .gqa_group = 4,
     .window = 0,
     .n_sinks = 4,
     .has_coded_rows = true,
     .has_sink_logits = true},
    {.head_idx = 0,
     .n_tokens = 1,
     .gqa_group = 3,
     .window = 0,
     .n_sinks = 0,
     .has_coded_rows = false},
    {.head_idx = 1,
     .n_tokens = 9,
     .gqa_group = 7,
     .window = 70,
     .n_sinks = 0,
     .has_coded_rows = false,
     .has_sink_logits = true,
     .loses_keys = true},
    {.head_idx = 4,
     .n_tokens = 1,
     .gqa_group = 1,
     .window = 0,
     .n_sinks = 2,
     .has_coded_rows = false},
};

TEST(CudaAttentionTest, IsThatOfTheCpuHoweverItIsSharedOut) {
  Memories memories;
  std::vector<std::unique_ptr<Job>> all;
  std::vector<HeadJob> gpu_jobs, cpu_jobs;
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    all.push_back(MakeJob(kShapes[i], 100 + i, &memories));
    gpu_jobs.push_back(all.back()->on_gpu);
    cpu_jobs.push_back(all.back()->on_cpu);
  }
  ThreadPool pool(1);
  Attention on_cpu(&pool, Isa::kScalar, &memories.cpu, &memories.host_residents);
  for (const int n_multiprocessors : {1, 5, 40}) {
    const ScoreRule& rule = n_multiprocessors == 5 ? kCappedRule : kRule;
    ASSERT_TRUE(on_cpu.Run(cpu_jobs, rule, Schedule::kLpt).ok());
    for (const Schedule schedule : {Schedule::kLpt, Schedule::kBalanced}) {
      CudaAttention attention(memories.stream.get(), memories.gpu.get(), n_multiprocessors);
      for (const HeadJob& job : gpu_jobs) ASSERT_TRUE(attention.Takes(job));
      attention.Attend(gpu_jobs, rule, schedule);
      ASSERT_TRUE(memories.stream->Finish().ok());
      for (size_t i = 0; i < all.size(); ++i) {
        const std::vector<float> got =
            OutputsAt(memories.gpu.get(), gpu_jobs[i], all[i]->n_outputs);
        const std::vector<float> want = OutputsAt(&memories.cpu, cpu_jobs[i], all[i]->n_outputs);
        for (size_t j = 0; j < got.size(); ++j) {
          // Probabilities are rounded to Bf16 over plain rows; values are 1 to 4 large.
          ASSERT_NEAR(got[j], want[j], 6e-3) << "job " << i << " number " << j;
        }
      }
    }
  }
}

TEST(CudaAttentionTest, AddsTheVotesOfRows) {
  for (const auto& [has_noise, rule] :
       {std::pair(false, kRule), std::pair(true, kRule), std::pair(false, kCappedRule)}) {
    Memories memories;
    const auto job = MakeJob(kShapes[1], 3, &memories);
    const int64_t n_blocks = (job->on_gpu.n_entries + kBlockSize - 1) / kBlockSize;
    std::vector<std::byte> bytes(n_blocks * EntryTable::BlockBytes(true));
    const EntryTable table(bytes.data(), true);
    for (int64_t e = 0; e < n_blocks * kBlockSize; ++e) {
      table.position(e) = static_cast<int32_t>(e);
      table.sum(e) = 5 * e;
    }
    const Memories::Objects objects = memories.Put(bytes.data(), std::ssize(bytes));
    const ScoreNoise noise = {.key = 17,
                              .first_head = 3,
                              .first_position = 400,
                              .temperature = 1.5f,
                              .temperature_step = 0.01f,
                              .max_temperature = 2};
    for (HeadJob* of : {&job->on_gpu, &job->on_cpu}) {
      of->scored = {.object = of == &job->on_gpu ? objects.on_gpu : objects.on_cpu,
                    .has_sums = true};
      of->first_scored = 1;
      if (has_noise) of->noise = &noise;
    }
    ThreadPool pool(1);
    Attention on_cpu(&pool, Isa::kScalar, &memories.cpu, &memories.host_residents);
    ASSERT_TRUE(on_cpu.Run({&job->on_cpu, 1}, rule, Schedule::kLpt).ok());
    CudaAttention attention(memories.stream.get(), memories.gpu.get(), 6);
    ASSERT_TRUE(attention.Takes(job->on_gpu));
    attention.Attend({&job->on_gpu, 1}, rule, Schedule::kBalanced);
    ASSERT_TRUE(memories.stream->Finish().ok());
    std::vector<std::byte> got_bytes(bytes.size());
    memories.gpu->Download({.object = objects.on_gpu}, got_bytes);
    memories.cpu.Download({.object = objects.on_cpu}, bytes);
    const EntryTable got(got_bytes.data(), true);
    for (int64_t e = 0; e < job->on_gpu.n_entries; ++e) {
      const double vote = static_cast<double>(table.sum(e) - 5 * e) * kScoreUnit;
      const double of_gpu = static_cast<double>(got.sum(e) - 5 * e) * kScoreUnit;
      // Sums of probabilities that are rounded to Bf16 move by 2^-8 of them at most.
      ASSERT_NEAR(of_gpu, vote, 0x1p-8 * vote + 1e-5) << "entry " << e << " noise " << has_noise;
    }
  }
}

TEST(CudaAttentionTest, ARowHasTheBitsThatItHasAlone) {
  Memories memories;
  const auto first = MakeJob(kShapes[0], 1, &memories), second = MakeJob(kShapes[1], 2, &memories);
  CudaAttention attention(memories.stream.get(), memories.gpu.get(), 30);
  attention.set_deterministic(true);
  const HeadJob both[] = {first->on_gpu, second->on_gpu};
  std::vector<std::vector<float>> outputs;
  for (const std::span<const HeadJob> jobs : {std::span(both, 1), std::span(both, 2)}) {
    attention.Attend(jobs, kRule, Schedule::kBalanced);
    ASSERT_TRUE(memories.stream->Finish().ok());
    outputs.push_back(OutputsAt(memories.gpu.get(), first->on_gpu, first->n_outputs));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

TEST(CudaAttentionTest, ATokenHasTheBitsThatItHasAlone) {
  Memories memories;
  // The window of the last of three tokens begins in another block than that of the first.
  JobShape windowed = kShapes[1];
  windowed.n_plain = 700;  // with those of the run 892, in more blocks than there are warps
  windowed.window = 892 - 128;
  for (const JobShape& shape : {kShapes[1], windowed}) {
    const auto job = MakeJob(shape, 3, &memories);
    CudaAttention attention(memories.stream.get(), memories.gpu.get(), 30);
    attention.set_deterministic(true);
    const auto run = [&](const HeadJob& of) {
      attention.Attend({&of, 1}, kRule, Schedule::kBalanced);
      ASSERT_TRUE(memories.stream->Finish().ok());
    };
    run(job->on_gpu);
    const std::vector<float> together = OutputsAt(memories.gpu.get(), job->on_gpu, job->n_outputs);
    HeadJob last = job->on_gpu;
    const int64_t n_before = last.n_tokens - 1, n_rows = n_before * last.gqa_group;
    last.n_tokens = 1;
    last.first_visible += static_cast<int>(n_before);
    last.sinks.first_visible += static_cast<int>(n_before);
    last.q = last.q + n_rows * last.q_stride * int64_t{sizeof(Bf16)};
    last.q_full = last.q_full + n_rows * last.q_full_stride * int64_t{sizeof(Bf16)};
    last.out = last.out + n_before * last.out_stride * int64_t{sizeof(float)};
    run(last);
    EXPECT_EQ(OutputsAt(memories.gpu.get(), job->on_gpu, job->n_outputs), together);
  }
}

TEST(CudaAttentionTest, LeavesToTheHostWhatItHasNoKernelFor) {
  Memories memories;
  const CudaAttention attention(memories.stream.get(), memories.gpu.get(), 4);
  const auto taken = MakeJob(kShapes[0], 1, &memories);
  EXPECT_TRUE(attention.Takes(taken->on_gpu));
  const auto refuses = [&](const auto& change) {
    HeadJob job = taken->on_gpu;
    change(job);
    return !attention.Takes(job);
  };
  EXPECT_TRUE(refuses([](HeadJob& job) { job.n_tokens = 65; }));
  EXPECT_TRUE(refuses([](HeadJob& job) { job.gqa_group = 17; }));
  EXPECT_TRUE(refuses([](HeadJob& job) { job.shape.row_type = DType::kF32; }));
  EXPECT_TRUE(refuses([](HeadJob& job) { job.shape.has_one_side = true; }));
  EXPECT_TRUE(refuses([](HeadJob& job) { job.packed.format.prompt_rank = 4; }));
  EXPECT_TRUE(refuses([](HeadJob& job) { job.packed.format.codec = SphereCodec{}; }));
  EXPECT_TRUE(refuses([](HeadJob& job) { job.sinks.n = 65; }));
  const WeightId map = {.number = 1};
  EXPECT_TRUE(refuses([&](HeadJob& job) { job.frames.maps = {&map, 1}; }));
  const int n_closed[] = {3};
  EXPECT_TRUE(refuses([&](HeadJob& job) { job.merged.n_closed = n_closed; }));
}

}  // namespace
}  // namespace kvlathe

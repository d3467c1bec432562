// Attention of many rows on a GPU over blocks of codes, against sums in double over what the codes
// stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/testing/attend_packed_problem.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "cuda/kernels/attend/prefill_case.h"
#include "tensor/buffer.h"

namespace kvlathe::cuda {
namespace {

PromptProblem CodedProblem(const PackedProblem& p) {
  PromptProblem problem = {.shape = p.shape,
                           .blocks = p.blocks,
                           .packed = &p.head,
                           .gqa_group = p.c.gqa_group,
                           .q = {},
                           .q_stride = p.c.rank_k,
                           .reference = {},
                           .k_parts = p.k.parts,
                           .v_parts = p.v.parts};
  for (const Bf16 x : p.q_bf16) problem.q.push_back(x.bits);
  problem.reference = {.n_rows = p.n_rows,
                       .gqa_group = p.c.gqa_group,
                       .rank_k = p.c.rank_k,
                       .rank_v = p.c.rank_v,
                       .kv_begin = p.c.kv_begin,
                       .kv_end = p.KvEnd(),
                       .first_visible = p.FirstVisible(),
                       .window = p.c.window,
                       .sm_scale = p.SmScale(),
                       .q = {p.q_stored.begin(), p.q_stored.end()},
                       .k = p.k.values,
                       .v = p.v.values};
  return problem;
}

void CheckCoded(const PackedCase& c, uint64_t seed, const PromptCut& split = {}) {
  const PackedProblem problem(c, DType::kBf16, seed);
  ExpectRight(CodedProblem(problem), split, c.Describe());
}

PackedSide Numbers(int bits, ScaleSharing sharing, int group, bool is_symmetric = false) {
  return {.bits = bits, .sharing = sharing, .group = group, .is_symmetric = is_symmetric};
}

TEST(PrefillCodesTest, NumbersOfEveryWidthAndSharing) {
  std::vector<PackedSide> keys, values;
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {16, 64, 128, 0}) {
      keys.push_back(Numbers(bits, ScaleSharing::kChannel, group));
      values.push_back(Numbers(bits, ScaleSharing::kToken, group));
    }
    keys.push_back(Numbers(bits, ScaleSharing::kToken, 32));
    values.push_back(Numbers(bits, ScaleSharing::kTokenLayer, 0));
  }
  for (const int bits : {4, 8}) {
    keys.push_back(Numbers(bits, ScaleSharing::kToken, 32, true));
    values.push_back(Numbers(bits, ScaleSharing::kToken, 0, true));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    PackedCase c;
    c.format.codec = UniformCodec{keys[i], values[values.size() - 1 - i]};
    c.runs = {{2, true, false}, {2, true}, {1, false}};
    c.rank_k = i % 3 == 0 ? 80 : 64;
    c.rank_v = i % 2 == 0 ? 48 : 128;
    c.n_plain = 30;
    c.n_tokens = 20;
    c.gqa_group = 1 + static_cast<int>(i) % 3;
    CheckCoded(c, i);
    if (HasFatalFailure()) return;
  }
}

TEST(PrefillCodesTest, RepairsOfRuns) {
  for (const int lowrank : {0, 3}) {
    for (const double share : {0.0, 0.06}) {
      for (const bool packs : {false, true}) {
        PackedCase c;
        c.format.codec = UniformCodec{Numbers(4, ScaleSharing::kChannel, 64),
                                      Numbers(3, ScaleSharing::kTokenLayer, 0)};
        c.format.prompt_rank = lowrank;
        c.format.decode_rank = 2;
        c.format.sparse_share = share;
        c.packs_exact = packs;
        c.rank_k = packs ? 256 : 48;
        c.rank_v = 80;
        c.runs = {{2, true}, {1, true, false}, {1, false}};
        c.n_plain = 10;
        c.n_tokens = 5;
        c.hidden_blocks = 1;
        CheckCoded(c, lowrank + (packs ? 7 : 0));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Numbers of several signs and steps, of which one stands twice.
constexpr NamedTable kPrefillTable({0, 1, 3, 6, 12, 22, 37, 58, 0, -2, -4, -8, -15, -27, -41, -52},
                                   0.25f);

TEST(PrefillCodesTest, TablesOfNumbers) {
  for (const int group : {16, 48, 256}) {
    PackedCase c;
    c.format.codec = TableCodec{&kPrefillTable, group};
    c.rank_k = 80;
    c.rank_v = 64;
    c.n_plain = 3;
    c.n_tokens = 18;
    c.gqa_group = 2;
    CheckCoded(c, group);
  }
}

TEST(PrefillCodesTest, RunsAreSeenInPart) {
  for (int i = 0; i < 4; ++i) {
    PackedCase c;
    c.format.codec =
        UniformCodec{Numbers(4, ScaleSharing::kChannel, 64), Numbers(4, ScaleSharing::kToken, 32)};
    c.runs = {{3, true}, {2, false}};
    c.n_tokens = 33;
    c.kv_begin = i % 2 * 64;
    c.unseen = 20 * i;
    c.past_end = 7 * i;
    c.window = i == 3 ? 90 : kNoWindow;
    c.n_plain = i * 11;
    CheckCoded(c, i, {.rows = 32, .n_parts = 1 + i % 2});
  }
}

PromptProblem CodedProblem(const SplitProblem& p, int n_tokens, int group, Random& random) {
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  const int n = static_cast<int>(p.k.size()) / rank_k, n_rows = n_tokens * group;
  PromptProblem problem = {.shape = p.shape,
                           .blocks = p.blocks,
                           .packed = &p.packed_head,
                           .gqa_group = group,
                           .q = {},
                           .q_stride = rank_k,
                           .reference = {.n_rows = n_rows,
                                         .gqa_group = group,
                                         .rank_k = rank_k,
                                         .rank_v = rank_v,
                                         .kv_end = n,
                                         .first_visible = n - n_tokens + 1,
                                         .sm_scale = 1 / std::sqrt(static_cast<float>(rank_k)),
                                         .q = {},
                                         .k = {p.k.begin(), p.k.end()},
                                         .v = {p.v.begin(), p.v.end()}}};
  for (int i = 0; i < n_rows * rank_k; ++i) {
    const Bf16 x = ToBf16(static_cast<float>(random.Normal()));
    problem.q.push_back(x.bits);
    problem.reference.q.push_back(ToFloat(x));
  }
  for (int t = 0; t < p.head.n_blocks * kBlockSize; ++t) {
    for (int c = 0; c < rank_k; ++c) problem.reference.k[t * rank_k + c] = p.Decoded(true, t, c);
    for (int c = 0; c < rank_v; ++c) problem.reference.v[t * rank_v + c] = p.Decoded(false, t, c);
  }
  return problem;
}

// With residuals the reference is what the portable code reads, which other tests hold against the
// layout.
void ReadExpanded(const PackedHead& head, const PackedRun& run, PromptProblem* problem) {
  const int rank_k = problem->shape.rank_k, rank_v = problem->shape.rank_v;
  AttendParams params;
  params.shape = problem->shape;
  params.packed = &head;
  const PackedRunView view = ViewRun(params, run);
  std::vector<float> block(kBlockSize * (rank_k + rank_v));
  for (int t = 0; t < run.n_blocks * kBlockSize; ++t) {
    const int b = t / kBlockSize, i = t % kBlockSize;
    if (i == 0) ExpandPackedBlock(view, problem->blocks[b], b, block.data());
    for (int c = 0; c < rank_k; ++c) {
      problem->reference.k[t * rank_k + c] = block[KeyOffset(i, c)];
    }
    for (int c = 0; c < rank_v; ++c) {
      problem->reference.v[t * rank_v + c] =
          block[kBlockSize * rank_k + ValueOffset(problem->shape, i, c)];
    }
  }
  for (const double x : problem->reference.k) problem->k_parts.push_back(2 * std::abs(x) + 1);
  for (const double x : problem->reference.v) problem->v_parts.push_back(2 * std::abs(x) + 1);
}

TEST(PrefillCodesTest, SplitBitsAndCodedRows) {
  Random random(3);
  for (SplitHead head : kSplitHeads) {
    for (const int kind : {0, 1, 2, 3}) {
      head.lowrank = kind == 1 ? 2 : 0;
      head.has_coded_rows = kind >= 2;
      head.has_one_side = kind == 3;
      SplitProblem p(head, DType::kBf16, 11);
      ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
      p.UsePacked();
      PromptProblem problem = CodedProblem(p, 17, 2, random);
      if (head.lowrank > 0) ReadExpanded(p.packed_head, p.run, &problem);
      ExpectRight(problem, {.rows = 32}, testing::PrintToString(head.k_channels));
      if (HasFatalFailure()) return;
    }
  }
}

// A head with codebooks of the model whose keys turn when they are read. The reference is what the
// portable code reads.
TEST(PrefillCodesTest, CodebooksAndRotations) {
  constexpr int kBlocks = 3, kRank = 48, kHalf = 16;
  for (const bool before_rope : {false, true}) {
    Random random(4);
    const auto drawn = [&](int64_t n) {
      std::vector<float> numbers(n);
      for (float& x : numbers) x = static_cast<float>(random.Normal());
      return numbers;
    };
    LayerCodebooks books = {.key_scales = {drawn(2 * kRank)}};
    for (float& x : books.k.centroids) x = static_cast<float>(random.Normal());
    for (float& x : books.v.centroids) x = static_cast<float>(random.Normal());
    const std::vector<float> cos = drawn(kBlocks * kBlockSize * kHalf), sin = drawn(cos.size());
    const BlockShape shape = {.rank_k = kRank, .rank_v = kRank};
    std::vector<Buffer> memory;
    std::vector<const std::byte*> blocks;
    for (int b = 0; b < kBlocks; ++b) {
      memory.push_back(Buffer::Allocate(kBlockSize * kRank, "test").value());
      for (int64_t i = 0; i < kBlockSize * kRank; ++i) {
        memory.back().data()[i] = static_cast<std::byte>(random.Below(256));
      }
      blocks.push_back(memory.back().data());
    }
    std::vector<F16> layer_record;
    for (const float x : drawn(kBlocks * 2 * kBlockSize)) layer_record.push_back(ToF16(x));
    const PackedRun run = {.n_blocks = kBlocks,
                           .layer_record = reinterpret_cast<const std::byte*>(layer_record.data())};
    PackedHead head = {.format = {.codec = CodebookCodec{4, before_rope}},
                       .layer_rank_v = kRank,
                       .runs = &run,
                       .n_runs = 1,
                       .codebooks = &books};
    if (before_rope) head.rotation = {cos.data(), sin.data(), kHalf};
    PromptProblem problem = {.shape = shape,
                             .blocks = blocks,
                             .packed = &head,
                             .q = {},
                             .q_stride = kRank,
                             .reference = {.n_rows = 20,
                                           .rank_k = kRank,
                                           .rank_v = kRank,
                                           .kv_end = kBlocks * kBlockSize,
                                           .first_visible = kBlocks * kBlockSize - 19,
                                           .sm_scale = 0.1f,
                                           .q = {},
                                           .k = std::vector<double>(kBlocks * kBlockSize * kRank),
                                           .v = std::vector<double>(kBlocks * kBlockSize * kRank)}};
    for (int i = 0; i < 20 * kRank; ++i) {
      const Bf16 x = ToBf16(static_cast<float>(random.Normal()));
      problem.q.push_back(x.bits);
      problem.reference.q.push_back(ToFloat(x));
    }
    ReadExpanded(head, run, &problem);
    ExpectRight(problem, {}, before_rope ? "before RoPE" : "after RoPE");
  }
}

}  // namespace
}  // namespace kvlathe::cuda

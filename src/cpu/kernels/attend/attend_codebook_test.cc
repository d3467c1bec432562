// Sealed blocks with codebooks: what they expand to against a literal reading in double, and
// attention over them against attention over plain blocks of those values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/threads.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/testing/seal_test_layer.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kSink = 3;  // positions before the first entry

// Angles of position and pair with an amplitude, as a table by blocks.
struct Rotation {
  Rotation(int rotated_channels, double rotation_amplitude, int n_blocks)
      : half(rotated_channels / 2), amplitude(rotation_amplitude) {
    for (int b = 0; b < n_blocks; ++b) {
      for (int line = 0; line < half / 2; ++line) {
        for (int t = 0; t < kBlockSize; ++t) {
          for (int i : {2 * line, 2 * line + 1}) {
            const double angle = Angle(kSink + b * kBlockSize + t, i);
            cos.push_back(static_cast<float>(amplitude * std::cos(angle)));
            sin.push_back(static_cast<float>(amplitude * std::sin(angle)));
          }
        }
      }
    }
  }
  double Angle(int position, int pair) const {
    return position * std::pow(100, -1.0 * pair / half);
  }
  KeyRotation table() const {
    return {cos.data(), sin.data(), half, static_cast<float>(1 / (amplitude * amplitude))};
  }
  // Row by row in double: y_i = a (x_i cos - x_j sin), y_j = a (x_j cos + x_i sin), j = i + half.
  void Turn(int rank, std::vector<double>* keys) const {
    for (size_t t = 0; t < keys->size() / rank; ++t) {
      double* row = keys->data() + t * rank;
      for (int i = 0; i < half; ++i) {
        const double angle = Angle(kSink + static_cast<int>(t), i), x = row[i], y = row[i + half];
        row[i] = amplitude * (x * std::cos(angle) - y * std::sin(angle));
        row[i + half] = amplitude * (y * std::cos(angle) + x * std::sin(angle));
      }
    }
  }

  int half;
  double amplitude;
  std::vector<float> cos, sin;
};

// Heads sealed as one run, which are rows before RoPE where the format says so: sealing gets them
// turned and turns them back.
struct SealedRun {
  SealedRun(const PackedFormat& format, DType row_type, const Rotation& rotation, int n_blocks)
      : layer(format, row_type,
              Turned(format, rotation,
                     DrawHeads(Data::kTypical, {{64, 48}, {48, 64}}, n_blocks, row_type, 5)),
              n_blocks, true) {
    ThreadPool pool(1);
    Sealer sealer(format, row_type, 2, &pool, AvailableIsas().back());
    SealJob job = layer.Job(3);
    job.rotation = rotation.table();
    EXPECT_TRUE(sealer.Run({&job, 1}).ok());
  }

  static std::vector<RefHead> Turned(const PackedFormat& format, const Rotation& rotation,
                                     std::vector<RefHead> heads) {
    for (RefHead& head : heads) {
      std::vector<double> keys(head.k.begin(), head.k.end());
      if (format.seals_keys_before_rope()) rotation.Turn(head.rank_k, &keys);
      head.k.assign(keys.begin(), keys.end());
    }
    return heads;
  }

  PackedHead Head(int head_idx, const KeyRotation& rotation) {
    const PackedShape shape = layer.ShapeOf(head_idx);
    run = {.n_blocks = layer.n_blocks,
           .record = layer.records[head_idx].data(),
           .layer_record = layer.layer_record.data()};
    return {.format = layer.format,
            .kv_head_idx = head_idx,
            .n_kv_heads = layer.n_heads(),
            .layer_rank_v = shape.layer_rank_v,
            .runs = &run,
            .n_runs = 1,
            .codebooks = &layer.codebooks,
            .rotation = rotation};
  }

  Layer layer;
  PackedRun run;
};

PackedFormat BeforeRope(PackedFormat format) {
  std::get<CodebookCodec>(format.codec).keys_before_rope = true;
  return format;
}

const PackedFormat kFormats[] = {Codebooks(4, 0.02), BeforeRope(Codebooks(4, 0.02)),
                                 BeforeRope(Codebooks(3, 0)), BeforeRope(Codebooks(2, 0.1, 3)),
                                 BeforeRope(Codebooks(4, 0.02, 21))};

double RelativeError(const std::vector<double>& want, const std::vector<float>& got) {
  double error = 0, square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (want[i] - got[i]) * (want[i] - got[i]);
    square += want[i] * want[i];
  }
  return std::sqrt(error / square);
}

TEST(ExpandPackedBlock, IsTheLiteralReadingOfTheLayout) {
  for (const PackedFormat& format : kFormats) {
    for (const Rotation& rotation : {Rotation(48, 1, 3), Rotation(16, 1.2, 3)}) {
      SealedRun sealed(format, DType::kF32, rotation, 3);
      for (int h = 0; h < 2; ++h) {
        const RefHead& rows = sealed.layer.heads[h];
        const PackedHead head = sealed.Head(h, rotation.table());
        const AttendParams params{.shape = {rows.rank_k, rows.rank_v, DType::kF32},
                                  .packed = &head};
        const PackedRunView view = ViewRun(params, sealed.run);
        const RefObjects objects = sealed.layer.Objects(h);
        const std::vector<float> k = ReadKeysRef(objects), v = ReadValuesRef(objects);
        std::vector<double> keys(k.begin(), k.end()), values(v.begin(), v.end());
        if (format.seals_keys_before_rope()) rotation.Turn(rows.rank_k, &keys);
        std::vector<float> got_k(keys.size()), got_v(values.size());
        std::vector<float> tile(kBlockSize * (rows.rank_k + rows.rank_v));
        for (int t = 0; t < 3 * kBlockSize; ++t) {
          if (t % kBlockSize == 0) {
            ExpandPackedBlock(view, sealed.layer.packed[h * 3 + t / kBlockSize].data(),
                              t / kBlockSize, tile.data());
          }
          for (int r = 0; r < rows.rank_k; ++r) {
            got_k[t * rows.rank_k + r] = tile[KeyOffset(t % kBlockSize, r)];
          }
          for (int r = 0; r < rows.rank_v; ++r) {
            got_v[t * rows.rank_v + r] =
                tile[kBlockSize * rows.rank_k + ValueOffset(params.shape, t % kBlockSize, r)];
          }
        }
        EXPECT_LT(RelativeError(keys, got_k), 1e-6);
        EXPECT_LT(RelativeError(values, got_v), 1e-7);
      }
    }
  }
}

// Turned, sealed before RoPE and turned again: the codes are those of the rows as they were drawn,
// but for the few that rounding takes over a boundary.
TEST(SealBeforeRope, TurnsKeysBackFirst) {
  const Rotation rotation(48, 1.2, 3);
  const PackedFormat format = BeforeRope(Codebooks(4, 0));
  const SealedRun sealed(format, DType::kF32, rotation, 3);
  const Layer drawn(format, DType::kF32,
                    DrawHeads(Data::kTypical, {{64, 48}, {48, 64}}, 3, DType::kF32, 5), 3, true);
  const RefSealed want = drawn.Ref();
  int n_bytes = 0, n_other = 0;
  for (int h = 0; h < 2; ++h) {
    for (int b = 0; b < 3; ++b) {
      const std::vector<std::byte>& got = sealed.layer.packed[h * 3 + b];
      for (size_t i = 0; i < got.size(); ++i, ++n_bytes) {
        n_other += got[i] != want.heads[h].blocks[b].bytes[i];
      }
    }
  }
  EXPECT_LT(n_other, n_bytes / 1000);
}

struct Output {
  std::vector<float> o, row_max, row_sum;
  friend bool operator==(const Output&, const Output&) = default;
};

Output Attend(const AttendKernels& kernels, AttendParams params) {
  Output out{std::vector<float>(params.n_rows * params.shape.rank_v),
             std::vector<float>(params.n_rows), std::vector<float>(params.n_rows)};
  params.o = out.o.data();
  params.o_stride = params.shape.rank_v;
  params.row_max = out.row_max.data();
  params.row_sum = out.row_sum.data();
  Buffer scratch = Buffer::Allocate(kAttendScratchBytes, "test scratch").value();
  std::memset(scratch.data(), 0xff, scratch.n_bytes());
  kernels.attend(params, scratch.data());
  return out;
}

// Two sealed blocks of three, and one that was left plain.
TEST(AttendCodebooks, IsAttentionOverTheExpandedBlocks) {
  const Rotation rotation(48, 1, 3);
  for (const PackedFormat& format : kFormats) {
    for (const Isa isa : AvailableIsas()) {
      for (const DType row_type : {DType::kBf16, DType::kF32}) {
        SealedRun sealed(format, row_type, rotation, 2);
        const RefHead& rows = sealed.layer.heads[1];
        const PackedHead head = sealed.Head(1, rotation.table());
        AttendParams params{.shape = {rows.rank_k, rows.rank_v, row_type}, .packed = &head};
        const PackedRunView view = ViewRun(params, sealed.run);
        std::vector<Buffer> plain;
        std::vector<const std::byte*> blocks, expanded;
        const int64_t n_elements = int64_t{kBlockSize} * (rows.rank_k + rows.rank_v);
        for (int b = 0; b < 3; ++b) {
          plain.push_back(Buffer::Allocate(BlockBytes(params.shape), "test block").value());
          std::vector<float> tile(n_elements);
          ExpandPackedBlock(view, sealed.layer.packed[2 + b % 2].data(), b % 2, tile.data());
          ConvertFromFloat(row_type, tile.data(), n_elements, plain.back().data());
          expanded.push_back(plain.back().data());
          blocks.push_back(b < 2 ? sealed.layer.packed[2 + b].data() : plain.back().data());
        }
        for (const int n_tokens : {1, 5, 67}) {
          SCOPED_TRACE(std::string(IsaName(isa)) + " tokens " + std::to_string(n_tokens));
          params.gqa_group = 2;
          params.n_rows = 2 * n_tokens;
          std::vector<float> q(int64_t{params.n_rows} * rows.rank_k);
          Random random(9);
          for (float& x : q) x = static_cast<float>(random.Normal());
          std::vector<std::byte> q_rows(q.size() * SizeOf(row_type));
          ConvertFromFloat(row_type, q.data(), std::ssize(q), q_rows.data());
          params.q = q_rows.data();
          params.q_stride = rows.rank_k;
          params.kv_end = 2 * kBlockSize + 40;
          params.first_visible = params.kv_end - n_tokens + 1;
          params.sm_scale = 0.1f;
          params.score_cap = n_tokens == 5 ? 1.5f : 0;
          params.blocks = blocks.data();
          params.packed = &head;
          const AttendKernels& kernels = GetAttendKernels(isa, row_type);
          const Output got = Attend(kernels, params);
          params.blocks = expanded.data();
          params.packed = nullptr;
          // Rows that the tiles of AMX take go there only where all blocks are plain.
          const AttendKernels& plain_kernels =
              isa == Isa::kAmx ? GetAttendKernels(Isa::kAvx512Bf16, row_type) : kernels;
          const Output want = Attend(plain_kernels, params);
          if (isa >= Isa::kAvx512Bf16 || row_type == DType::kF32) {
            EXPECT_TRUE(got == want);
            continue;
          }
          // Sets that multiply in F32 read values that the plain blocks have rounded.
          for (size_t i = 0; i < got.o.size(); ++i) {
            const size_t row = i / rows.rank_v;
            EXPECT_NEAR(got.o[i] / got.row_sum[row], want.o[i] / want.row_sum[row], 2e-2);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe

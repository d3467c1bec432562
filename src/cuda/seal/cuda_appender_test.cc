// Rows that are appended on a GPU against those of the CPU, byte for byte.
#include "cuda/seal/cuda_appender.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/coded_rows.h"
#include "cuda/testing/seal_on_device.h"
#include "format/packed_layout.h"

namespace kvlathe {
namespace {

constexpr int kMost = 2 * kBlockSize;

// Rows of numbers of many sizes, some of them 0 or tiny, in bytes of the row type.
std::vector<std::byte> DrawnRows(DType type, int64_t n, int width, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(n * width * SizeOf(type));
  for (int64_t i = 0; i < n * width; ++i) {
    const int kind = static_cast<int>(i / width % 7);
    const double size = kind == 5 ? 1e-39 : kind == 6 ? 1e30 : std::exp2(3 * kind - 6);
    const auto x = static_cast<float>(kind == 4 ? 0 : size * random.Normal());
    ConvertFromFloat(type, &x, 1, bytes.data() + i * SizeOf(type));
  }
  return bytes;
}

// Appends rows of one head in pieces on both machines.
struct AppendCase {
  BlockShape shape;
  bool is_coded = false;

  int64_t block_bytes() const {
    return is_coded ? kBlockSize * CodedTokenBytes(shape) : BlockBytes(shape);
  }
};

struct Piece {
  int first_slot, n_rows;
};

std::vector<std::byte> AppendedOnCpu(const AppendCase& c, const std::vector<std::byte>& k,
                                     const std::vector<std::byte>& v, int stride_extra,
                                     const std::vector<Piece>& pieces, bool* is_finite) {
  std::vector<std::byte> block(c.block_bytes(), std::byte{0xa5});
  int64_t row = 0;
  *is_finite = true;
  for (const Piece& piece : pieces) {
    const int64_t k_stride = c.shape.rank_k + stride_extra, v_stride = c.shape.rank_v;
    const AppendParams params = {.shape = c.shape,
                                 .block = block.data(),
                                 .first_slot = piece.first_slot,
                                 .n_rows = piece.n_rows,
                                 .k = k.data() + row * k_stride * c.shape.element_bytes(),
                                 .k_stride = k_stride,
                                 .v = v.data() + row * v_stride * c.shape.element_bytes(),
                                 .v_stride = v_stride};
    if (c.is_coded) {
      *is_finite = AppendCodedRows(params) && *is_finite;
    } else {
      GetAttendKernels(Isa::kScalar, c.shape.row_type).append(params);
    }
    row += piece.n_rows;
  }
  return block;
}

TEST(CudaAppenderTest, BlocksAreThoseOfTheCpu) {
  SealDevice device;
  CudaAppender appender(device.stream(), device.memory());
  const std::vector<Piece> pieces = {{3, 1}, {4, 37}, {41, 2}, {0, 3}, {63, 1}};
  uint64_t seed = 1;
  for (const DType type : {DType::kBf16, DType::kF32}) {
    for (const AppendCase& c :
         {AppendCase{{48, 80, type}}, AppendCase{{48, 80, type}, true},
          AppendCase{{512, 512, type, 0, true}, true}, AppendCase{{16, 16, type}}}) {
      const int extra = 16;
      const auto k = DrawnRows(type, kMost, c.shape.rank_k + extra, seed++);
      const auto v = DrawnRows(type, kMost, c.shape.rank_v, seed++);
      bool is_finite;
      const auto want = AppendedOnCpu(c, k, v, extra, pieces, &is_finite);
      ASSERT_TRUE(is_finite);
      const ObjectId k_id = device.Put(k), v_id = device.Put(v);
      const ObjectId block = device.Put(std::vector(c.block_bytes(), std::byte{0xa5}));
      // Each piece is an item of its own; what is copied is a row of the source.
      const ObjectId sinks = device.Put(std::vector(k.size(), std::byte{0xa5}));
      AppendPlan plan;
      int64_t row = 0;
      for (const Piece& piece : pieces) {
        const int64_t k_stride = c.shape.rank_k + extra;
        plan.items.push_back({.device = device.memory(),
                              .first_copy = static_cast<int>(plan.copies.size()),
                              .n_copies = 1,
                              .first_rows = static_cast<int>(plan.rows.size()),
                              .n_rows = 1});
        // Of sizes that no wide load divides, too.
        plan.copies.push_back({.from = {k_id, row * k_stride * c.shape.element_bytes()},
                               .to = {sinks, row * k_stride * c.shape.element_bytes()},
                               .n_bytes = 16 * piece.n_rows + 2 * (piece.n_rows % 3)});
        plan.rows.push_back({.shape = c.shape,
                             .block = block,
                             .is_coded = c.is_coded,
                             .first_slot = piece.first_slot,
                             .n_rows = piece.n_rows,
                             .k = {k_id, row * k_stride * c.shape.element_bytes()},
                             .k_stride = k_stride,
                             .v = {v_id, row * c.shape.rank_v * c.shape.element_bytes()},
                             .v_stride = c.shape.rank_v});
        row += piece.n_rows;
      }
      appender.Append(plan);
      StepReport report;
      appender.Report(&report);
      ASSERT_TRUE(device.stream()->Finish().ok());
      EXPECT_TRUE(report.failures.empty());
      EXPECT_EQ(device.Get(block, c.block_bytes()), want);
      std::vector<std::byte> want_sinks(k.size(), std::byte{0xa5});
      for (const CopyPlan& copy : plan.copies) {
        std::memcpy(&want_sinks[copy.to.offset], &k[copy.from.offset], copy.n_bytes);
      }
      EXPECT_EQ(device.Get(sinks, std::ssize(k)), want_sinks);
      device.FreeAll();
    }
  }
}

TEST(CudaAppenderTest, SaysWhichSequencesHoldWhatIsNotFinite) {
  SealDevice device;
  CudaAppender appender(device.stream(), device.memory());
  const BlockShape shape = {32, 32, DType::kF32};
  const auto good = DrawnRows(DType::kF32, 2, 32, 1);
  const float nan = std::nanf(""), inf = -std::numeric_limits<float>::infinity();
  auto with_nan = good, with_inf = good;
  std::memcpy(&with_nan[4 * 33], &nan, 4);
  std::memcpy(&with_inf[4 * 63], &inf, 4);
  AppendPlan plan = {.layer_idx = 5};
  for (int i = 0; i < 6; ++i) {
    const bool is_coded = i != 4;  // plain rows are not looked at
    const ObjectId k = device.Put(i == 1 || i == 4 ? with_nan : good);
    const ObjectId v = device.Put(i == 3 ? with_inf : good);
    const ObjectId block = device.Put(std::vector(BlockBytes(shape), std::byte{}));
    plan.items.push_back({.device = device.memory(), .sequence = i, .first_rows = i, .n_rows = 1});
    plan.rows.push_back({.shape = shape,
                         .block = block,
                         .is_coded = is_coded,
                         .first_slot = 7,
                         .n_rows = 2,
                         .k = {k},
                         .k_stride = 32,
                         .v = {v},
                         .v_stride = 32});
  }
  for (int again = 0; again < 2; ++again) {
    appender.Append(plan);
    StepReport report;
    appender.Report(&report);
    ASSERT_TRUE(device.stream()->Finish().ok());
    ASSERT_EQ(report.failures.size(), 2);
    EXPECT_EQ(report.failures[0].sequence, 1);
    EXPECT_EQ(report.failures[1].sequence, 3);
    EXPECT_EQ(report.failures[0].layer_idx, 5);
    EXPECT_EQ(report.failures[0].status.code(), StatusCode::kDataLoss);
  }
  StepReport nothing_new;
  appender.Report(&nothing_new);
  EXPECT_TRUE(nothing_new.failures.empty());
}

}  // namespace
}  // namespace kvlathe

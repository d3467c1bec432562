#include "cpu/kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// A product with operands that are already rounded to the compute type.
struct Problem {
  DType x_type = DType::kBf16;
  int64_t n_rows = 1, n_out = 64, n_in = 64;
  int64_t x_extra = 0, y_extra = 0;  // elements between rows
  DType y_type = DType::kF32;
  bool has_bias = false, accumulate = false;
};

std::string Describe(const Problem& p, Isa isa) {
  return fmt::format("{} {} rows={} out={} in={} x_extra={} y_extra={} y={} bias={} accumulate={}",
                     IsaName(isa), DTypeName(p.x_type), p.n_rows, p.n_out, p.n_in, p.x_extra,
                     p.y_extra, DTypeName(p.y_type), p.has_bias, p.accumulate);
}

std::vector<float> RandomValues(int64_t n, DType type, Random& random) {
  std::vector<float> values(n);
  for (float& v : values) {
    v = static_cast<float>(random.Normal());
    if (type == DType::kBf16) v = ToFloat(ToBf16(v));
  }
  return values;
}

std::vector<std::byte> Stored(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * SizeOf(type));
  ConvertFromFloat(type, values.data(), static_cast<int64_t>(values.size()), bytes.data());
  return bytes;
}

PackedMatrix Pack(const std::vector<float>& w, int64_t n_out, int64_t n_in, DType type) {
  PackedMatrix m = *PackedMatrix::Create(n_out, n_in, DenseWeights(type));
  const std::vector<std::byte> stored = Stored(w, type);
  m.PackRows(0, n_out, type, stored.data(), n_in);
  return m;
}

enum class Where { kPool, kOneWorker };

// Runs the problem and compares every value of y with sums in double. The bound is relative to
// sum |x||w|: F32 sums of n values in any order, and the rounding of a BF16 result.
void ExpectMatchesDouble(const Problem& p, Isa isa, Linear& linear, Where where, uint64_t seed) {
  SCOPED_TRACE(Describe(p, isa));
  Random random(seed);
  const int64_t x_stride = p.n_in + p.x_extra, y_stride = p.n_out + p.y_extra;
  const std::vector<float> x = RandomValues(p.n_rows * x_stride, p.x_type, random);
  const std::vector<float> w = RandomValues(p.n_out * p.n_in, p.x_type, random);
  const std::vector<float> bias = RandomValues(p.n_out, DType::kF32, random);
  const std::vector<float> y_before = RandomValues(p.n_rows * y_stride, p.y_type, random);
  const PackedMatrix packed = Pack(w, p.n_out, p.n_in, p.x_type);
  const std::vector<std::byte> stored_x = Stored(x, p.x_type);
  std::vector<std::byte> stored_y = Stored(y_before, p.y_type);
  const LinearParams params = {.w = &packed,
                               .n_rows = p.n_rows,
                               .x_type = p.x_type,
                               .x = stored_x.data(),
                               .x_stride = x_stride,
                               .bias = p.has_bias ? bias.data() : nullptr,
                               .y = stored_y.data(),
                               .y_stride = y_stride,
                               .y_type = p.y_type,
                               .accumulate = p.accumulate};
  if (where == Where::kPool) {
    linear.Run(params);
  } else {
    linear.RunOnWorker(params, 0);
  }
  std::vector<float> y(y_before.size());
  ConvertToFloat(p.y_type, stored_y.data(), static_cast<int64_t>(y.size()), y.data());

  const double sum_error = 0x1p-24 * (8 + std::sqrt(static_cast<double>(p.n_in)));
  int n_wrong = 0;
  for (int64_t t = 0; t < p.n_rows; ++t) {
    for (int64_t j = 0; j < y_stride; ++j) {
      const int64_t at = t * y_stride + j;
      double expected = y_before[at], bound = 0;
      if (j < p.n_out) {
        double sum = p.has_bias ? bias[j] : 0, abs_sum = std::abs(sum);
        for (int64_t i = 0; i < p.n_in; ++i) {
          const double product = double{x[t * x_stride + i]} * w[j * p.n_in + i];
          sum += product;
          abs_sum += std::abs(product);
        }
        if (p.accumulate) abs_sum += std::abs(expected);
        expected = p.accumulate ? expected + sum : sum;
        bound = sum_error * abs_sum;
        if (p.y_type == DType::kBf16) bound += 0x1p-8 * std::abs(expected);
      }
      if (std::abs(y[at] - expected) > bound && ++n_wrong <= 5) {
        ADD_FAILURE() << "y[" << t << "][" << j << "] = " << y[at] << ", expected " << expected
                      << " +- " << bound << (j < p.n_out ? "" : " (between rows)");
      }
    }
  }
  EXPECT_EQ(n_wrong, 0) << "of " << p.n_rows * y_stride;
}

class LinearTest : public testing::TestWithParam<Isa> {
 protected:
  void Check(const Problem& p, Where where = Where::kPool) {
    ExpectMatchesDouble(p, GetParam(), linear_, where, ++seed_);
  }

  ThreadPool pool_{3};
  Linear linear_{&pool_, GetParam()};
  uint64_t seed_ = 0;
};

TEST_P(LinearTest, EveryRowCountUpTo17MatchesDouble) {
  for (int64_t n_rows = 1; n_rows <= 17; ++n_rows) {
    for (DType type : {DType::kBf16, DType::kF32}) {
      Check({.x_type = type, .n_rows = n_rows, .n_out = 200, .n_in = 288});
    }
  }
}

TEST_P(LinearTest, ManyRowsMatchDouble) {
  for (DType type : {DType::kBf16, DType::kF32}) {
    for (int64_t n_rows : {64, 130, 400}) {
      Check({.x_type = type, .n_rows = n_rows, .n_out = 192, .n_in = 160});
      Check({.x_type = type, .n_rows = n_rows, .n_out = 64, .n_in = 96, .x_extra = 32});
    }
  }
}

TEST_P(LinearTest, RandomShapesAndOptionsMatchDouble) {
  Random random(7);
  const int64_t row_counts[] = {1, 2, 3, 5, 8, 9, 13, 16, 17, 33, 64, 130, 200};
  for (int i = 0; i < 120; ++i) {
    Problem p = {.x_type = random.Below(3) == 0 ? DType::kF32 : DType::kBf16,
                 .n_rows = row_counts[random.Below(std::size(row_counts))],
                 .n_out = static_cast<int64_t>(1 + random.Below(300)),
                 .n_in = static_cast<int64_t>(1 + random.Below(300)),
                 .x_extra = static_cast<int64_t>(random.Below(2) * random.Below(40)),
                 .y_extra = static_cast<int64_t>(random.Below(2) * random.Below(40)),
                 .y_type = random.Below(2) == 0 ? DType::kF32 : DType::kBf16,
                 .has_bias = random.Below(2) == 0};
    p.accumulate = p.y_type == DType::kF32 && random.Below(2) == 0;
    Check(p, random.Below(3) == 0 ? Where::kOneWorker : Where::kPool);
  }
}

TEST_P(LinearTest, TinyAndLongShapesMatchDouble) {
  for (int64_t n_rows : {1, 4, 40}) {
    Check({.n_rows = n_rows, .n_out = 16, .n_in = 16});
    Check({.n_rows = n_rows, .n_out = 1, .n_in = 1});
    Check({.n_rows = n_rows, .n_out = 17, .n_in = 32768, .has_bias = true});
  }
}

TEST_P(LinearTest, ResultDoesNotDependOnTheNumberOfWorkersBeyondRounding) {
  for (int n_workers : {1, 2, 5}) {
    ThreadPool pool(n_workers);
    Linear linear(&pool, GetParam());
    for (int64_t n_rows : {1, 7, 300}) {
      ExpectMatchesDouble({.n_rows = n_rows, .n_out = 250, .n_in = 64}, GetParam(), linear,
                          Where::kPool, n_workers);
    }
  }
}

TEST_P(LinearTest, MoreShapesThanAreRememberedStillMatch) {
  for (int64_t n_rows = 16; n_rows < 16 + 140; ++n_rows) {
    Check({.n_rows = n_rows, .n_out = 16, .n_in = 32}, Where::kOneWorker);
  }
  Check({.n_rows = 16, .n_out = 16, .n_in = 32}, Where::kOneWorker);
}

TEST_P(LinearTest, WorkersRunDifferentProductsAtOnce) {
  const int64_t n_in = 80, n_out = 48, n_rows = 20;
  Random random(3);
  const std::vector<float> x = RandomValues(n_rows * n_in, DType::kBf16, random);
  const std::vector<std::byte> stored_x = Stored(x, DType::kBf16);
  std::vector<PackedMatrix> matrices;
  for (int i = 0; i < pool_.n_workers(); ++i) {
    matrices.push_back(
        Pack(RandomValues(n_out * n_in, DType::kBf16, random), n_out, n_in, DType::kBf16));
  }
  const auto params = [&](int id, std::vector<float>& y) {
    return LinearParams{.w = &matrices[id],
                        .n_rows = n_rows,
                        .x = stored_x.data(),
                        .x_stride = n_in,
                        .y = y.data(),
                        .y_stride = n_out};
  };
  std::vector<std::vector<float>> y(pool_.n_workers(), std::vector<float>(n_rows * n_out));
  pool_.Run([&](int id) { linear_.RunOnWorker(params(id, y[id]), id); });
  for (int id = 0; id < pool_.n_workers(); ++id) {
    std::vector<float> alone(n_rows * n_out);
    linear_.RunOnWorker(params(id, alone), 0);
    EXPECT_EQ(y[id], alone) << "worker " << id;
  }
}

// Bit for bit, over row counts on both sides of every change of kernel, cut and tile.
TEST_P(LinearTest, DeterministicRowsAreThoseOfARowAlone) {
  const int64_t n_in = 3001, n_out = 70, n_rows_max = 130;
  linear_.set_deterministic(true);
  Random random(11);
  for (DType type : {DType::kBf16, DType::kF32}) {
    const std::vector<float> x = RandomValues(n_rows_max * n_in, type, random);
    const std::vector<std::byte> stored_x = Stored(x, type);
    const PackedMatrix w = Pack(RandomValues(n_out * n_in, type, random), n_out, n_in, type);
    const auto product = [&](int64_t first_row, int64_t n_rows, bool on_worker) {
      std::vector<float> y(n_rows * n_out);
      const LinearParams params = {.w = &w,
                                   .n_rows = n_rows,
                                   .x_type = type,
                                   .x = stored_x.data() + first_row * n_in * SizeOf(type),
                                   .x_stride = n_in,
                                   .y = y.data(),
                                   .y_stride = n_out};
      on_worker ? linear_.RunOnWorker(params, 1) : linear_.Run(params);
      return y;
    };
    std::vector<float> alone;
    for (int64_t row = 0; row < n_rows_max; ++row) {
      const std::vector<float> y = product(row, 1, false);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int64_t n_rows : {2, 5, 7, 15, 16, 17, 63, 64, 65, 130}) {
      const int64_t first = n_rows_max - n_rows;
      const std::vector<float> expected(alone.begin() + first * n_out, alone.end());
      EXPECT_TRUE(product(first, n_rows, false) == expected) << DTypeName(type) << " " << n_rows;
      EXPECT_TRUE(product(first, n_rows, true) == expected) << DTypeName(type) << " " << n_rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LinearTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

TEST(PackedMatrixTest, RowsComeBackRounded) {
  Random random(1);
  const int64_t n_out = 150, n_in = 77, row_stride = 90;
  const std::vector<float> w = RandomValues(n_out * row_stride, DType::kF32, random);
  for (DType x_type : {DType::kBf16, DType::kF32}) {
    for (DType source_type : {DType::kBf16, DType::kF16, DType::kF32}) {
      const std::vector<std::byte> stored = Stored(w, source_type);
      PackedMatrix m = *PackedMatrix::Create(n_out, n_in, DenseWeights(x_type));
      m.PackRows(0, n_out, source_type, stored.data(), row_stride);
      std::vector<float> source(w.size()), row(n_in);
      ConvertToFloat(source_type, stored.data(), static_cast<int64_t>(w.size()), source.data());
      for (int64_t out = 0; out < n_out; ++out) {
        m.UnpackRow(out, row.data());
        for (int64_t i = 0; i < n_in; ++i) {
          const float value = source[out * row_stride + i];
          const float expected = x_type == DType::kBf16 ? ToFloat(ToBf16(value)) : value;
          ASSERT_EQ(row[i], expected)
              << "W[" << out << "][" << i << "] from " << DTypeName(source_type);
        }
      }
    }
  }
}

TEST(PackedMatrixTest, PiecesInAnyOrderEqualTheWhole) {
  Random random(2);
  const int64_t n_out = 200, n_in = 45;
  const std::vector<float> w = RandomValues(n_out * n_in, DType::kF32, random);
  for (DType x_type : {DType::kBf16, DType::kF32}) {
    PackedMatrix whole = *PackedMatrix::Create(n_out, n_in, DenseWeights(x_type));
    whole.PackRows(0, n_out, DType::kF32, w.data(), n_in);
    PackedMatrix pieces = *PackedMatrix::Create(n_out, n_in, DenseWeights(x_type));
    for (const auto& [begin, end] :
         {std::pair{130, 200}, std::pair{0, 1}, std::pair{1, 63}, std::pair{63, 130}}) {
      pieces.PackRows(begin, end - begin, DType::kF32, w.data() + begin * n_in, n_in);
    }
    ASSERT_EQ(whole.n_bytes(), pieces.n_bytes());
    EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.n_bytes()), 0);
  }
}

}  // namespace
}  // namespace kvlathe

#include "cpu/kernels/linear/dense_product.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace kvlathe {
namespace {

TEST(DenseProductTest, IsTheDefinitionWithStridesAndEitherOrderOfAAndB) {
  struct Case {
    int64_t n_rows, n_columns, n_inner;
  };
  Random random(1);
  for (const auto& [n_rows, n_columns, n_inner] :
       {Case{1, 1, 1}, Case{3, 5, 7}, Case{128, 300, 64}, Case{128, 64, 300}}) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool is_a_transposed = (variant & 1) != 0, is_transposed = (variant & 2) != 0;
      const bool accumulate = (variant & 4) != 0;
      DenseProduct p = {.n_rows = n_rows,
                        .n_columns = n_columns,
                        .n_inner = n_inner,
                        .a_stride = (is_a_transposed ? n_rows : n_inner) + 3,
                        .is_a_transposed = is_a_transposed,
                        .b_stride = (is_transposed ? n_inner : n_columns) + 2,
                        .is_b_transposed = is_transposed,
                        .c_stride = n_columns + 1,
                        .accumulate = accumulate};
      std::vector<float> a((is_a_transposed ? n_inner : n_rows) * p.a_stride),
          c(n_rows * p.c_stride, 7.0f);
      std::vector<float> b((is_transposed ? n_columns : n_inner) * p.b_stride);
      for (auto* values : {&a, &b}) {
        for (float& x : *values) x = static_cast<float>(random.Normal());
      }
      p.a = a.data();
      p.b = b.data();
      p.c = c.data();
      Multiply(p);
      for (int64_t i = 0; i < n_rows; ++i) {
        for (int64_t j = 0; j < n_columns; ++j) {
          double sum = accumulate ? 7 : 0;
          for (int64_t k = 0; k < n_inner; ++k) {
            sum += double{a[is_a_transposed ? k * p.a_stride + i : i * p.a_stride + k]} *
                   (is_transposed ? b[j * p.b_stride + k] : b[k * p.b_stride + j]);
          }
          ASSERT_NEAR(c[i * p.c_stride + j], sum, 1e-4);
        }
        EXPECT_EQ(c[i * p.c_stride + n_columns], 7.0f);  // between rows
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe

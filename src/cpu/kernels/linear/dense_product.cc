#include "cpu/kernels/linear/dense_product.h"

#include <dnnl.h>
#include <omp.h>

namespace kvlathe {

void Multiply(const DenseProduct& p) {
  // oneDNN's OpenMP team would fight with our pool: one thread, and the caller's setting back
  // after.
  const int n_threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const dnnl_status_t status =
      dnnl_sgemm(p.is_a_transposed ? 'T' : 'N', p.is_b_transposed ? 'T' : 'N', p.n_rows,
                 p.n_columns, p.n_inner, 1.0f, p.a, p.a_stride, p.b, p.b_stride,
                 p.accumulate ? 1.0f : 0.0f, p.c, p.c_stride);
  omp_set_num_threads(n_threads);
  if (status == dnnl_success) return;
  // Out of memory for its scratch: the definition.
  for (int64_t i = 0; i < p.n_rows; ++i) {
    for (int64_t j = 0; j < p.n_columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < p.n_inner; ++k) {
        sum += p.a[p.is_a_transposed ? k * p.a_stride + i : i * p.a_stride + k] *
               (p.is_b_transposed ? p.b[j * p.b_stride + k] : p.b[k * p.b_stride + j]);
      }
      float& c = p.c[i * p.c_stride + j];
      c = p.accumulate ? c + sum : sum;
    }
  }
}

}  // namespace kvlathe

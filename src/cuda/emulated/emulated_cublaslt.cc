// Products as cuBLASLt computes them, in plain loops in the order of a stream. What the library
// refuses is refused here too: types that do not go together, leading dimensions that are too
// short, places that are aligned worse than the algorithm was asked for, a workspace that is too
// small.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/emulated/emulated_runtime.h"
#include "tensor/dtype.h"

struct KvlatheLtHandle {};

struct KvlatheMatmulDesc {
  int32_t transposes_a = CUBLAS_OP_N, transposes_b = CUBLAS_OP_N;
};

// Column after column, `stride` elements apart.
struct KvlatheMatrixLayout {
  cudaDataType type;
  int64_t n_rows, n_columns, stride;
};

struct KvlatheMatmulPreference {
  uint64_t workspace_bytes = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of a, b, c, d
};

namespace {

constexpr uint64_t kWorkspaceBytes = 4096;  // what products need where they may have it
constexpr uint64_t kMark = 0x6b766c61746865;

int64_t BytesOfType(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

struct Problem {
  bool transposes_a, transposes_b;
  KvlatheMatrixLayout a, b, d;
  float alpha, beta;
  const void *a_at, *b_at;
  void* d_at;
};

float NumberAt(cudaDataType type, const void* from, int64_t idx) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[idx];
  return kvlathe::ToFloat(static_cast<const kvlathe::Bf16*>(from)[idx]);
}

// Column `column` of op(matrix)^T as floats: n numbers that are multiplied with.
void TakeColumn(const KvlatheMatrixLayout& layout, const void* at, bool is_row, int64_t idx,
                int64_t n, float* to) {
  if (is_row) {
    for (int64_t i = 0; i < n; ++i) to[i] = NumberAt(layout.type, at, i * layout.stride + idx);
    return;
  }
  if (layout.type == CUDA_R_32F) {
    std::memcpy(to, static_cast<const float*>(at) + idx * layout.stride, n * sizeof(float));
    return;
  }
  const auto* const from = static_cast<const kvlathe::Bf16*>(at) + idx * layout.stride;
  for (int64_t i = 0; i < n; ++i) to[i] = kvlathe::ToFloat(from[i]);
}

// Sums of a lane apart become vectors.
template <int kColumns>
void Dots(const float* a, const float* b, int64_t b_stride, int64_t n, float* sums) {
  constexpr int kLanes = 8;
  float lanes[kColumns][kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int c = 0; c < kColumns; ++c) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[c][lane] += a[i + lane] * b[c * b_stride + i + lane];
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    float sum = 0;
    for (int64_t j = i; j < n; ++j) sum += a[j] * b[c * b_stride + j];
    for (int lane = 0; lane < kLanes; ++lane) sum += lanes[c][lane];
    sums[c] = sum;
  }
}

void PutProduct(const Problem& p, int64_t row, int64_t column, float product) {
  const int64_t idx = column * p.d.stride + row;
  float y = p.alpha * product;
  if (p.beta != 0) y += p.beta * NumberAt(p.d.type, p.d_at, idx);
  if (p.d.type == CUDA_R_32F) {
    static_cast<float*>(p.d_at)[idx] = y;
  } else {
    static_cast<kvlathe::Bf16*>(p.d_at)[idx] = kvlathe::ToBf16(y);
  }
}

void Multiply(const Problem& p) {
  constexpr int kColumns = 4;  // that meet a row of op(a) while it is at hand
  const int64_t m = p.d.n_rows, n = p.d.n_columns;
  const int64_t k = p.transposes_a ? p.a.n_rows : p.a.n_columns;
  std::vector<float> b(n * k), a(k);
  for (int64_t column = 0; column < n; ++column) {
    TakeColumn(p.b, p.b_at, p.transposes_b, column, k, &b[column * k]);
  }
  for (int64_t row = 0; row < m; ++row) {
    TakeColumn(p.a, p.a_at, !p.transposes_a, row, k, a.data());
    float sums[kColumns];
    int64_t column = 0;
    for (; column + kColumns <= n; column += kColumns) {
      Dots<kColumns>(a.data(), &b[column * k], k, k, sums);
      for (int c = 0; c < kColumns; ++c) PutProduct(p, row, column + c, sums[c]);
    }
    for (; column < n; ++column) {
      Dots<1>(a.data(), &b[column * k], k, k, sums);
      PutProduct(p, row, column, sums[0]);
    }
  }
}

bool IsSound(const KvlatheMatrixLayout& layout) {
  return layout.n_rows > 0 && layout.n_columns > 0 && layout.stride >= layout.n_rows;
}

// Of op(a) op(b) = d, with c like d.
cublasStatus_t CheckShapes(const KvlatheMatmulDesc& desc, const KvlatheMatrixLayout& a,
                           const KvlatheMatrixLayout& b, const KvlatheMatrixLayout& c,
                           const KvlatheMatrixLayout& d) {
  const bool ta = desc.transposes_a == CUBLAS_OP_T, tb = desc.transposes_b == CUBLAS_OP_T;
  const int64_t m = ta ? a.n_columns : a.n_rows, k = ta ? a.n_rows : a.n_columns;
  const int64_t n = tb ? b.n_rows : b.n_columns, b_k = tb ? b.n_columns : b.n_rows;
  if (!IsSound(a) || !IsSound(b) || !IsSound(c) || !IsSound(d) || k != b_k || d.n_rows != m ||
      d.n_columns != n || c.n_rows != m || c.n_columns != n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool is_bf16 = a.type == CUDA_R_16BF;
  if (a.type != b.type || c.type != d.type || (!is_bf16 && d.type != CUDA_R_32F)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool IsAligned(const void* address, uint64_t n_bytes) {
  return reinterpret_cast<uintptr_t>(address) % n_bytes == 0;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new KvlatheLtHandle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
  }
  return "unknown status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = new KvlatheMatmulDesc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t n_bytes) {
  if (value == nullptr || n_bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  int32_t& to = attribute == CUBLASLT_MATMUL_DESC_TRANSA ? desc->transposes_a : desc->transposes_b;
  std::memcpy(&to, value, n_bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t n_rows, uint64_t n_columns, int64_t stride) {
  *layout = new KvlatheMatrixLayout{type, static_cast<int64_t>(n_rows),
                                    static_cast<int64_t>(n_columns), stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new KvlatheMatmulPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t n_bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (n_bytes != sizeof(uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference->workspace_bytes, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (n_bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
              value, n_bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* n_found) {
  *n_found = 0;
  if (n_wanted <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status = CheckShapes(*desc, *a, *b, *c, *d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const cudaDataType types[4] = {a->type, b->type, c->type, d->type};
  results[0] = {};
  results[0].algo.data[0] = kMark;
  for (int i = 0; i < 4; ++i) {
    const uint32_t alignment = preference->alignments[i];
    if (alignment < BytesOfType(types[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
    results[0].algo.data[1 + i] = alignment;
  }
  results[0].workspaceSize = std::min(preference->workspace_bytes, kWorkspaceBytes);
  results[0].algo.data[5] = results[0].workspaceSize;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *n_found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const cublasStatus_t status = CheckShapes(*desc, *a_layout, *b_layout, *c_layout, *d_layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (algo == nullptr || algo->data[0] != kMark) return CUBLAS_STATUS_INVALID_VALUE;
  const void* const places[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (places[i] == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (!IsAligned(places[i], algo->data[1 + i])) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const uint64_t needed = algo->data[5];
  if (workspace_bytes < needed || (needed > 0 && workspace == nullptr) ||
      !IsAligned(workspace, 256) || c != d) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Problem problem = {desc->transposes_a == CUBLAS_OP_T,
                           desc->transposes_b == CUBLAS_OP_T,
                           *a_layout,
                           *b_layout,
                           *d_layout,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta),
                           a,
                           b,
                           d};
  kvlathe::emulated::AddWork(stream, [=] {
    // A product may use all of its workspace.
    if (needed > 0) std::memset(workspace, 0xff, needed);
    Multiply(problem);
  });
  return CUBLAS_STATUS_SUCCESS;
}

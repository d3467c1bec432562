#include "cuda/rows/cublaslt_product.h"

#include <cublasLt.h>

#include <utility>

namespace kvlathe {
namespace {

// Shapes come and go with the sizes of batches.
constexpr size_t kMostChoices = 4096;
constexpr int64_t kShareOfFree = 64;
constexpr int64_t kWorkspaceSizes[] = {int64_t{32} << 20, int64_t{4} << 20, int64_t{256} << 10};

Status StatusOfCublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return OkStatus();
  return Error(StatusCode::kUnavailable, "cuBLASLt: {}: {}", what, cublasLtGetStatusString(status));
}

cudaDataType CudaTypeOf(DType type) { return type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// The largest power of two, up to 256, that the address is a multiple of.
uint32_t AlignmentOf(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256u;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// Owns a descriptor of cuBLASLt.
template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Owned {
  T it = nullptr;
  Owned() = default;
  ~Owned() {
    if (it != nullptr) kDestroy(it);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};
using OwnedHandle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using OwnedDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using OwnedLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using OwnedPreference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <typename T>
cublasStatus_t SetPreference(const OwnedPreference& preference,
                             cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return cublasLtMatmulPreferenceSetAttribute(preference.it, attribute, &value, sizeof(value));
}

}  // namespace

struct CublasltProduct::Library {
  OwnedHandle handle;
  OwnedDesc desc;  // of W^T, which stands first, and x: rows are columns to cuBLASLt
};

struct CublasltProduct::Choice {
  OwnedLayout w, x, y;
  cublasLtMatmulAlgo_t algo = {};
};

CublasltProduct::CublasltProduct(CudaDevice* device)
    : device_(*device), library_(std::make_unique<Library>()) {}
CublasltProduct::~CublasltProduct() = default;

StatusOr<std::unique_ptr<CublasltProduct>> CublasltProduct::Create(CudaDevice* device) {
  std::unique_ptr<CublasltProduct> made(new CublasltProduct(device));
  Library& library = *made->library_;
  KVL_RETURN_IF_ERROR(StatusOfCublas(cublasLtCreate(&library.handle.it), "starting"));
  KVL_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatmulDescCreate(&library.desc.it, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product"));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  KVL_RETURN_IF_ERROR(
      StatusOfCublas(cublasLtMatmulDescSetAttribute(library.desc.it, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof(transposed)),
                     "a transposed matrix"));
  const int64_t most = device->n_free_bytes() / kShareOfFree;
  for (const int64_t n_bytes : kWorkspaceSizes) {
    if (n_bytes <= most && made->workspace_.EnsureSize(device, n_bytes, "products").ok()) break;
  }
  return made;
}

StatusOr<const CublasltProduct::Choice*> CublasltProduct::ChoiceFor(const DenseProduct& p) {
  const uint32_t w_alignment = AlignmentOf(p.w), x_alignment = AlignmentOf(p.x);
  const uint32_t y_alignment = AlignmentOf(p.y);
  const Shape shape = {p.type,     p.y_type,   p.n_rows,    p.n_out,     p.n_in,     p.w_stride,
                       p.x_stride, p.y_stride, w_alignment, x_alignment, y_alignment};
  const auto known = choices_.find(shape);
  if (known != choices_.end()) return known->second.get();
  auto choice = std::make_unique<Choice>();
  const cudaDataType type = CudaTypeOf(p.type);
  KVL_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatrixLayoutCreate(&choice->w.it, type, p.n_in, p.n_out, p.w_stride), "weights"));
  KVL_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatrixLayoutCreate(&choice->x.it, type, p.n_in, p.n_rows, p.x_stride), "rows"));
  KVL_RETURN_IF_ERROR(StatusOfCublas(cublasLtMatrixLayoutCreate(&choice->y.it, CudaTypeOf(p.y_type),
                                                                p.n_out, p.n_rows, p.y_stride),
                                     "products"));
  OwnedPreference preference;
  KVL_RETURN_IF_ERROR(
      StatusOfCublas(cublasLtMatmulPreferenceCreate(&preference.it), "a preference"));
  const cublasStatus_t statuses[] = {
      SetPreference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    static_cast<uint64_t>(workspace_.n_bytes())),
      SetPreference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, w_alignment),
      SetPreference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_alignment),
      SetPreference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment),
      SetPreference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment)};
  for (const cublasStatus_t status : statuses) {
    KVL_RETURN_IF_ERROR(StatusOfCublas(status, "a preference"));
  }
  cublasLtMatmulHeuristicResult_t found = {};
  int n_found = 0;
  KVL_RETURN_IF_ERROR(StatusOfCublas(
      cublasLtMatmulAlgoGetHeuristic(library_->handle.it, library_->desc.it, choice->w.it,
                                     choice->x.it, choice->y.it, choice->y.it, preference.it, 1,
                                     &found, &n_found),
      "choosing an algorithm"));
  if (n_found == 0) {
    return StatusOfCublas(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm");
  }
  choice->algo = found.algo;
  if (choices_.size() >= kMostChoices) choices_.clear();
  return (choices_[shape] = std::move(choice)).get();
}

Status CublasltProduct::Multiply(const DenseProduct& p) {
  const float alpha = 1, beta = p.accumulate ? 1 : 0;
  const auto multiply = [&]() -> Status {
    KVL_ASSIGN_OR_RETURN(const Choice* const choice, ChoiceFor(p));
    return StatusOfCublas(
        cublasLtMatmul(library_->handle.it, library_->desc.it, &alpha, p.w, choice->w.it, p.x,
                       choice->x.it, &beta, p.y, choice->y.it, p.y, choice->y.it, &choice->algo,
                       device_.At(workspace_.place()), static_cast<size_t>(workspace_.n_bytes()),
                       device_.stream().get()),
        "a product");
  };
  const Status status = multiply();
  if (status.ok()) return status;
  return Error(status.code(), "{} ({} {} rows x [{}, {}])", MessageOf(status), DTypeName(p.type),
               p.n_rows, p.n_out, p.n_in);
}

}  // namespace kvlathe

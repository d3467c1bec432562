// The functions of cuBLASLt that src/cuda calls, found in the library when the first of them is
// called: so programs are built without it (it has 400 MB), and start where it is missing.
#include <cublasLt.h>
#include <dlfcn.h>

namespace {

// libcublasLt as the loader finds it (LD_LIBRARY_PATH); null where there is none. What is called
// here is the same in both versions.
void* LoadedCublasLt() {
  static void* const library = [] {
    void* const found = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    return found != nullptr ? found : dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

template <auto kFunction>
decltype(kFunction) LoadedFunction(const char* name) {
  static const auto function = reinterpret_cast<decltype(kFunction)>(
      LoadedCublasLt() == nullptr ? nullptr : dlsym(LoadedCublasLt(), name));
  return function;
}

// kFunction is what the name names.
template <auto kFunction, typename... Args>
cublasStatus_t CallLoaded(const char* name, Args... args) {
  const auto function = LoadedFunction<kFunction>(name);
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(args...);
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return CallLoaded<&cublasLtCreate>("cublasLtCreate", handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return CallLoaded<&cublasLtDestroy>("cublasLtDestroy", handle);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  const auto function = LoadedFunction<&cublasLtGetStatusString>("cublasLtGetStatusString");
  return function == nullptr ? "libcublasLt.so.13 is not there" : function(status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return CallLoaded<&cublasLtMatmulDescCreate>("cublasLtMatmulDescCreate", desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return CallLoaded<&cublasLtMatmulDescDestroy>("cublasLtMatmulDescDestroy", desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t n_bytes) {
  return CallLoaded<&cublasLtMatmulDescSetAttribute>("cublasLtMatmulDescSetAttribute", desc,
                                                     attribute, value, n_bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t n_rows, uint64_t n_columns, int64_t stride) {
  return CallLoaded<&cublasLtMatrixLayoutCreate>("cublasLtMatrixLayoutCreate", layout, type, n_rows,
                                                 n_columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return CallLoaded<&cublasLtMatrixLayoutDestroy>("cublasLtMatrixLayoutDestroy", layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return CallLoaded<&cublasLtMatmulPreferenceCreate>("cublasLtMatmulPreferenceCreate", preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return CallLoaded<&cublasLtMatmulPreferenceDestroy>("cublasLtMatmulPreferenceDestroy",
                                                      preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t n_bytes) {
  return CallLoaded<&cublasLtMatmulPreferenceSetAttribute>("cublasLtMatmulPreferenceSetAttribute",
                                                           preference, attribute, value, n_bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* n_found) {
  return CallLoaded<&cublasLtMatmulAlgoGetHeuristic>("cublasLtMatmulAlgoGetHeuristic", handle, desc,
                                                     a, b, c, d, preference, n_wanted, results,
                                                     n_found);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t n_bytes, cudaStream_t stream) {
  return CallLoaded<&cublasLtMatmul>("cublasLtMatmul", handle, desc, alpha, a, a_layout, b,
                                     b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
                                     n_bytes, stream);
}

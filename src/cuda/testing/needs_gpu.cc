// The main function of tests that run on a GPU: where there is none it says so and exits with 77,
// which ctest counts as skipped.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    std::printf("skipped, no GPU: %s\n", cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}

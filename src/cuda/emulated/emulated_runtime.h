// A CUDA device that is none, for tests: its memory is host memory, its kernels run as fibres
// (simt/simt_host.h), and it looks for mistakes that a GPU would show seldom.
//
// Device memory has no access rights but while work of a stream runs, so whoever reads or writes it
// on the host ends the program with SIGSEGV. Work runs as late as it may: where the host waits for
// its stream. What lies between its allocations is not to be touched: AddressSanitizer knows all of
// it, without it pages that nobody has end the program, and so do 256 bytes behind each allocation
// once somebody has written them. Copies from pinned memory read it then, so whoever overwrites it
// before shows. New memory holds NaN. As on a GPU, what goes wrong is told by
// cudaGetLastError once more, until a thread has asked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace kvlathe::emulated {

// What cudaGetDeviceCount finds, at first what the environment variable KVLATHE_EMULATED_DEVICES
// says, else 1. All of them are the same.
void SetDeviceCount(int count);
// What the device has, at first what KVLATHE_EMULATED_BYTES says, else 1 GiB.
void SetDeviceBytes(int64_t n_bytes);
// Whether the device can run kernels of this program, at first true.
void SetHasKernels(bool has_kernels);

// Work that runs with access to the memory of the device, in the order of the stream.
void AddWork(cudaStream_t stream, std::function<void()> work);

// How a kernel is launched, for what a GPU refuses.
struct KernelLaunch {
  const void* kernel = nullptr;
  int64_t n_blocks = 1, n_blocks_y = 1;
  int64_t n_threads = 32;
  int64_t shared_bytes = 0;
};
// Adds a launch as work, or refuses it as a GPU does, which cudaGetLastError tells: where the
// device of the stream is not the thread's, where blocks are too many or too large, and where they
// want more shared memory than 48 KiB or what cudaFuncSetAttribute has allowed. The program ends
// where that was allowed no more when the work runs.
void AddKernel(cudaStream_t stream, const KernelLaunch& launch, std::function<void()> work);

}  // namespace kvlathe::emulated

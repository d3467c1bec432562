// In libkvlathe.so of a build with CUDA: its models may run on GPUs.
#include "cuda/cuda_machine_maker.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

// Registered when the library is loaded: a program that uses it has no main() of ours.
[[maybe_unused]] const bool kRegistersCudaMachines = [] {
  SetCudaMachines(MakeCudaMachine);
  return true;
}();

}  // namespace
}  // namespace kvlathe

// The command with machines on GPUs: real ones, or the emulated one of tests (kvlathe_emulated).
#include "cuda/cuda_machine_maker.h"
#include "kvlathe/program/program.h"
#include "runtime/machines/machine_choice.h"

int main(int argc, char** argv) {
  kvlathe::SetCudaMachines(kvlathe::MakeCudaMachine);
  return kvlathe::RunProgram(argc, argv);
}

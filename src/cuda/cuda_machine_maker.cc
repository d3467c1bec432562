#include "cuda/cuda_machine_maker.h"

#include <memory>

#include "cuda/cuda_machine.h"

namespace kvlathe {

StatusOr<MadeMachine> MakeCudaMachine(const MachineRequest& request) {
  const CudaOptions options = {.device = request.number,
                               .memory_bytes = request.memory_bytes,
                               .on_host_verb = request.on_host_verb};
  KVL_ASSIGN_OR_RETURN(const std::shared_ptr<CudaMachine> machine,
                       CudaMachine::Create(options, request.pool, request.isa));
  cudaDeviceProp properties;
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaGetDeviceProperties(&properties, request.number), "asking for its name"));
  return MadeMachine{machine, properties.name, machine->cuda_memory().n_bytes()};
}

}  // namespace kvlathe

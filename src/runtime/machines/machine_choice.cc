#include "runtime/machines/machine_choice.h"

#include <utility>

#include "cpu/cpu_machine.h"

namespace kvlathe {
namespace {

MachineMaker& CudaMachines() {
  static MachineMaker maker;
  return maker;
}

}  // namespace

std::shared_ptr<Machine> MakeMachine(ThreadPool* pool, Isa isa, const ExactProducts& exact,
                                     Communicator* ranks) {
  auto machine = std::make_shared<CpuMachine>(pool, isa);
  machine->set_exact_rows(exact.weights);
  machine->set_exact_attention(exact.attention);
  machine->set_ranks(ranks);
  return machine;
}

StatusOr<std::shared_ptr<Machine>> MakeMachine(ThreadPool* pool) {
  KVL_ASSIGN_OR_RETURN(const Isa isa, SelectIsa());
  return MakeMachine(pool, isa);
}

void SetCudaMachines(MachineMaker maker) { CudaMachines() = std::move(maker); }

Status CheckHasMachines(const DeviceChoice& device) {
  if (device.is_cpu() || CudaMachines() != nullptr) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "device {}: this build has no CUDA; make one with cmake --preset cuda "
               "(docs/cuda.md), or take the device cpu",
               DeviceText(device));
}

StatusOr<MadeMachine> MakeDeviceMachine(const DeviceChoice& device, MachineRequest request) {
  KVL_RETURN_IF_ERROR(CheckHasMachines(device));
  request.number = device.number;
  return CudaMachines()(request);
}

}  // namespace kvlathe

// Chooses the machine that models run on. It alone knows which machines there are.
#pragma once

#include <memory>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "comm/communicator.h"
#include "machine/machine.h"
#include "machine/machine_maker.h"
#include "runtime/machines/device_choice.h"

namespace kvlathe {

// Which products do not round one of their sides to bytes.
struct ExactProducts {
  bool weights = false;    // rows that meet weights in blocks
  bool attention = false;  // queries and probabilities that meet codes of few bits
};

// The processors of this computer: the workers of `pool`, which outlives the machine, with the
// kernels of `isa`. ranks: the machines that hold other parts of the same layers, which outlive it
// too; null: none.
std::shared_ptr<Machine> MakeMachine(ThreadPool* pool, Isa isa, const ExactProducts& exact = {},
                                     Communicator* ranks = nullptr);
// With the best instruction set that this computer has, or the one that KVLATHE_ISA names.
// kInvalidArgument where that is unknown or not there.
StatusOr<std::shared_ptr<Machine>> MakeMachine(ThreadPool* pool);

// Says how machines on GPUs are made; a build without CUDA never does. main() calls it before there
// is a second thread.
void SetCudaMachines(MachineMaker maker);
// kInvalidArgument where this build has no machine for such a device.
Status CheckHasMachines(const DeviceChoice& device);
// A machine on a GPU; errors are those of CheckHasMachines and MachineMaker.
StatusOr<MadeMachine> MakeDeviceMachine(const DeviceChoice& device, MachineRequest request);

}  // namespace kvlathe

// Makes machines on GPUs for programs that let a person choose one.
#pragma once

#include "base/status.h"
#include "machine/machine_maker.h"

namespace kvlathe {

// A MachineMaker (CudaMachine::Create).
StatusOr<MadeMachine> MakeCudaMachine(const MachineRequest& request);

}  // namespace kvlathe

// Makes machines on GPUs for programs that let a person choose one.
#pragma once

#include "base/status.h"
#include "machine/machine_maker.h"

namespace kvlathe {

// A MachineMaker. "Of its memory" is what is free but for what the runtime itself will want.
StatusOr<MadeMachine> MakeCudaMachine(const MachineRequest& request);

}  // namespace kvlathe

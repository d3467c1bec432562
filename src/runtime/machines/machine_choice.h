// Chooses the machine that models run on. It alone knows which machines there are.
#pragma once

#include <memory>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "machine/machine.h"

namespace kvlathe {

// The processors of this computer: the workers of `pool`, which outlives the machine, with the
// kernels of `isa`. With `exact_rows` products with weights in blocks do not round rows to 8 bits.
std::shared_ptr<Machine> MakeMachine(ThreadPool* pool, Isa isa, bool exact_rows = false);
// With the best instruction set that this computer has, or the one that KVLATHE_ISA names.
// kInvalidArgument where that is unknown or not there.
StatusOr<std::shared_ptr<Machine>> MakeMachine(ThreadPool* pool);

}  // namespace kvlathe

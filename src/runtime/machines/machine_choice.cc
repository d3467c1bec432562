#include "runtime/machines/machine_choice.h"

#include "cpu/cpu_machine.h"

namespace kvlathe {

std::shared_ptr<Machine> MakeMachine(ThreadPool* pool, Isa isa) {
  return std::make_shared<CpuMachine>(pool, isa);
}

StatusOr<std::shared_ptr<Machine>> MakeMachine(ThreadPool* pool) {
  KVL_ASSIGN_OR_RETURN(const Isa isa, SelectIsa());
  return MakeMachine(pool, isa);
}

}  // namespace kvlathe

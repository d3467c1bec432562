#include "runtime/machines/machine_choice.h"

#include "cpu/cpu_machine.h"

namespace kvlathe {

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

}  // namespace kvlathe

// A machine for tests that looks for mistakes which would go unseen on a CPU and would not on a
// machine with memory and an order of its own.
//
// Weights, tables, activations and caches lie on pages that have no access rights but while a verb
// or a call of the memory runs: whoever keeps an address and reads or writes in between ends the
// program with SIGSEGV. What is asked for runs as late as the order allows, at Finish or where the
// host waits, so that it meets what the host has changed or given back too early. Bytes that the
// block pool takes back become NaN. The kernels are the scalar ones.
#pragma once

#include "cpu/biting/late_backend.h"
#include "cpu/biting/late_device.h"
#include "cpu/cpu_backend.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "machine/machine.h"

namespace kvlathe {

class BitingMachine : public Machine {
 public:
  // `pool` outlives the machine.
  explicit BitingMachine(ThreadPool* pool) : pool_(*pool) {}
  // What nobody waited for never runs.
  ~BitingMachine() override { queue_.Drop(); }

  Device& memory() override { return memory_; }
  Residents& residents() override { return residents_; }
  Backend& backend() override { return backend_; }
  ThreadPool& host_threads() override { return pool_; }

 private:
  ThreadPool& pool_;
  WorkQueue queue_;
  LateDevice memory_{&queue_};
  CpuResidents residents_{&memory_};
  CpuBackend verbs_{&pool_, Isa::kScalar, &memory_, &residents_};
  LateBackend backend_{&verbs_, &queue_};
};

}  // namespace kvlathe

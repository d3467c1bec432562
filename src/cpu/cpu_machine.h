// The processors of this computer as a machine.
#pragma once

#include <memory>
#include <utility>

#include "base/cpu_features.h"
#include "cpu/cpu_backend.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "machine/machine.h"

namespace kvlathe {

class CpuMachine : public Machine {
 public:
  // Computes on the workers of `pool`, which outlives the machine, with the kernels of `isa`, in
  // `memory`, by default the host's own.
  CpuMachine(ThreadPool* pool, Isa isa,
             std::unique_ptr<CpuDevice> memory = std::make_unique<CpuDevice>())
      : pool_(*pool),
        memory_(std::move(memory)),
        residents_(memory_.get()),
        backend_(pool, isa, memory_.get(), &residents_) {}

  // Rows meet weights in blocks as they are, in place of integers of 8 bits.
  void set_exact_rows(bool exact) { backend_.set_exact_rows(exact); }
  // Queries and probabilities meet codes of few bits as they are, in place of integers of 7 bits.
  void set_exact_attention(bool exact) { backend_.set_exact_attention(exact); }

  // CpuBackend::set_ranks.
  void set_ranks(Communicator* ranks) { backend_.set_ranks(ranks); }

  Device& memory() override { return *memory_; }
  Residents& residents() override { return residents_; }
  Backend& backend() override { return backend_; }
  ThreadPool& host_threads() override { return pool_; }

 private:
  ThreadPool& pool_;
  std::unique_ptr<CpuDevice> memory_;
  CpuResidents residents_;
  CpuBackend backend_;
};

}  // namespace kvlathe

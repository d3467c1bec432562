// How a program comes by a machine that its build may lack, such as a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "machine/machine.h"

namespace kvlathe {

struct MachineRequest {
  int number = 0;            // of the devices of its kind that the computer has, from 0 on
  int64_t memory_bytes = 0;  // that the machine takes of the device; 0: what is free but for a rest
  ThreadPool* pool = nullptr;  // for what the host does; it outlives the machine
  Isa isa = Isa::kScalar;      // of kernels of the host
  // Called with each verb that the host computes for lack of a kernel, once, such as "attention
  // with keyformer's votes"; may be empty.
  std::function<void(std::string_view verb)> on_host_verb;
};

// A machine and what a person knows it by.
struct MadeMachine {
  std::shared_ptr<Machine> machine;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;  // that the machine has taken of the device
};

// kInvalidArgument where there is no such device, kUnavailable where none can be used,
// kResourceExhausted where its memory is short.
using MachineMaker = std::function<StatusOr<MadeMachine>(const MachineRequest& request)>;

}  // namespace kvlathe

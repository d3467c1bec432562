// A machine that models run on: its memory, what lies in it in a form of its own, and the verbs
// that compute there.
#pragma once

#include "base/threads.h"
#include "machine/backend.h"
#include "machine/device.h"
#include "machine/residents.h"

namespace kvlathe {

class Machine {
 public:
  virtual ~Machine() = default;

  virtual Device& memory() = 0;
  virtual Residents& residents() = 0;
  virtual Backend& backend() = 0;
  // The workers of the host beside it, for what host code works out itself, such as folding a basis
  // into weights.
  virtual ThreadPool& host_threads() = 0;
};

}  // namespace kvlathe

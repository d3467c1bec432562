// Several processes may train one model (data-parallel): each takes its share of the micro batches
// of every step, and gradients are added up between them by libtorch's c10d over gloo.
#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct WorkersOptions {
  int count = 1;        // processes
  int index = 0;        // of this one, below count
  std::string meet;     // HOST:PORT that worker 0 listens on
  int timeout_s = 600;  // for the others to come, and for each sum
};

// All processes call the same functions in the same order. From one thread.
class Workers {
 public:
  // Whether the build has gloo.
  static bool AreAvailable();
  // Waits until all are there. kInvalidArgument for options that cannot be, kUnavailable if the
  // others do not come, kUnimplemented in a build without gloo.
  static StatusOr<std::unique_ptr<Workers>> Join(const WorkersOptions& options);
  virtual ~Workers() = default;

  int count() const { return count_; }
  int index() const { return index_; }
  // Makes each tensor the sum over all processes. Shapes and types are the same in all; their
  // memory may be anywhere. kUnavailable if another process is gone.
  virtual Status AddUp(const std::vector<torch::Tensor>& tensors) = 0;
  // Whether any process says so.
  StatusOr<bool> AnyOf(bool is_so);

 protected:
  Workers(int count, int index) : count_(count), index_(index) {}

 private:
  int count_, index_;
};

}  // namespace kvlathe

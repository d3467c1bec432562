// oneDNN on one thread, for the part of a product that one worker computes. For machines that have
// AVX2; oneDNN itself picks the instructions.
#pragma once

#include <memory>

#include "cpu/kernels/linear/linear_part.h"

namespace kvlathe {

// One per worker: its primitives by shape (the least recently used go) and its scratch memory.
class DnnlLinear {
 public:
  DnnlLinear();
  ~DnnlLinear();

  // False when oneDNN has no fast implementation for the part (or no memory for it); nothing is
  // written then. Keeps oneDNN off all other threads.
  bool Run(const LinearPart& part);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe

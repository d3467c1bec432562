// Turns queries and keys of a layer to their positions, and maps them to the basis of the cache.
#pragma once

#include "base/threads.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cpu/kernels/linear/linear.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "machine/plans.h"

namespace kvlathe {

struct RotateKernels {
  const ElementwiseKernels* elementwise = nullptr;
  Linear* linear = nullptr;
  ThreadPool* pool = nullptr;
};

// Runs the plan on all workers. Rows lie in `own`.
void RotateAndMap(const RotatePlan& plan, const CpuAccess& own, const CpuResidents& residents,
                  const RotateKernels& kernels);

}  // namespace kvlathe

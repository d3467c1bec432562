// Attention of tokens that see different numbers of entries, and one row of their own (MergedRows).
#pragma once

#include <cstddef>

#include "cpu/attention/addresses.h"
#include "cpu/attention/partial.h"
#include "cpu/kernels/attend/attend.h"
#include "machine/attention/plan.h"

namespace kvlathe {

// What an item of merged rows needs beside the parameters of its kernel call.
struct MergedItem {
  const AttendKernels& kernels;
  const HeadJob& job;
  const JobAddresses& at;  // of the job
  const WorkItem& item;
  PartialRows spare;  // as large as the item's partial result
  std::byte* scratch;
};

// Writes the partial result of `params`, which are those of all rows and entries of the item. The
// rows of the item read the entries that all of them see together. The item that has the first
// entry also adds what only later tokens see, and each token's own row, with a call for each entry
// that closes among its tokens. Where bits must not depend on the rows of an item, each token reads
// all its entries itself.
void AttendMerged(const MergedItem& item, const AttendParams& params);

}  // namespace kvlathe

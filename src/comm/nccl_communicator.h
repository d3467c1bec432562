// A group whose ranks have a GPU each, by NCCL 2.19 or later; in builds with -DKVLATHE_NCCL=ON, for
// which scripts/fetch_nccl.sh brings what Debian does not have. It is compiled, and has never run:
// no machine of the project has two GPUs.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/communicator.h"

namespace kvlathe {

// Joins the ranks of `host`, whose memory is that of processors (mpi_communicator.h), by their
// GPUs: `device` is the number of this rank's. A collective of all its ranks. The communicator that
// results
//   - takes memory of that GPU in collectives, Send and Receive, and returns when they are done;
//   - sums in an order of NCCL's own: all ranks have the same bits, but not those of ranks added in
//   order;
//   - carries messages through `host`, from and to memory of processors;
//   - asks through `host`, where NCCL does not finish in time, which rank does not answer.
// kUnavailable where NCCL or the GPU refuses, with what it says.
StatusOr<std::unique_ptr<Communicator>> JoinNccl(std::unique_ptr<Communicator> host, int device);

}  // namespace kvlathe

// A group whose ranks are processes that mpirun started, on one machine or several, by OpenMPI 4.1.
// Programs that are started without it are a group of one, and MPI is not started.
#pragma once

#include <memory>

#include "base/status.h"
#include "comm/communicator.h"

namespace kvlathe {

// Joins the group of this process, once a process. Messages travel by MPI's own transports (shared
// memory, TCP, InfiniBand), which `mpirun --mca btl` chooses; a rank that waits sleeps
// (wait_pause.h) and does not spin as MPI's own calls do. The group ends cleanly (MPI_Finalize,
// which waits for all ranks) when the communicator and all that it was split into are destroyed,
// and is left as it is after an error. kUnimplemented in a build without MPI (-DKVLATHE_MPI=OFF)
// that mpirun started; kInvalidArgument when it is called twice; kUnavailable where MPI cannot
// start or a rank does not come within half a minute.
//
// mpirun gives each rank one core, or one socket, unless it is told otherwise: for ranks with
// several threads,
// `--bind-to none` or `--map-by slot:PE=N`.
StatusOr<std::unique_ptr<Communicator>> JoinMpi();

// Whether this process was started as one of a group (by mpirun or another starter that speaks PMIx
// or PMI).
bool IsStartedByMpi();
// How many processes OpenMPI's mpirun has started, and which of them this is, without starting MPI;
// of a process that it has not started one, the first.
struct StartedProcesses {
  int n = 1;
  int idx = 0;
};
StartedProcesses ProcessesOfMpirun();

// Ends this process with exit_code, and with it all ranks of its group, also those that are stopped
// or hang: for programs, after an error that a communicator returned. Without a group it ends this
// process alone. No destructor runs; what was written to standard streams is flushed first.
[[noreturn]] void EndGroup(int exit_code);

}  // namespace kvlathe

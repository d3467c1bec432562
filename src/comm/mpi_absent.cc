// In place of mpi_communicator.cc in a build without MPI (-DKVLATHE_MPI=OFF).
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "comm/mpi_communicator.h"
#include "comm/thread_communicator.h"

namespace kvlathe {

StatusOr<std::unique_ptr<Communicator>> JoinMpi() {
  if (IsStartedByMpi()) {
    return Error(StatusCode::kUnimplemented,
                 "mpirun started this program, but it was built without MPI; build it with "
                 "-DKVLATHE_MPI=ON, or start it without mpirun");
  }
  return std::move(MakeThreadGroup(1)[0]);
}

void EndGroup(int exit_code) {
  std::fflush(nullptr);
  ::_exit(exit_code);
}

}  // namespace kvlathe

#include <cstdlib>

#include "comm/mpi_communicator.h"

namespace kvlathe {

bool IsStartedByMpi() {
  // Of OpenMPI's mpirun, of PMIx (PRRTE, Slurm) and of PMI (MPICH, older Slurm).
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

StartedProcesses ProcessesOfMpirun() {
  const char* const n = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* const idx = std::getenv("OMPI_COMM_WORLD_RANK");
  if (n == nullptr || idx == nullptr) return {};
  return {std::atoi(n), std::atoi(idx)};
}

}  // namespace kvlathe

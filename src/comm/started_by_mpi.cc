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

}  // namespace kvlathe

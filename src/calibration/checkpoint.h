// What calibration has added up lies in a file while it runs, so that one that was killed goes on
// where it was.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "calibration/moment_sums.h"

namespace kvlathe {

// Where a checkpoint lies and what it is of.
struct CheckpointPlace {
  std::string path;
  std::string key;  // Fingerprint::Hex() of everything that the sums depend on
};

// Writes the sums of the first n_done sequences, atomically. Errors are those of AtomicFile.
Status WriteCheckpoint(const CheckpointPlace& place, int64_t n_done, const SumBytes& sums);

// Reads what WriteCheckpoint wrote into sums of the same sizes and returns n_done; 0 where there is
// no file. kInvalidArgument if the file is of another key, of other sizes or of another kind,
// kDataLoss if it is damaged; the sums are good for nothing then.
StatusOr<int64_t> ReadCheckpoint(const CheckpointPlace& place, const SumBytes& sums);

}  // namespace kvlathe

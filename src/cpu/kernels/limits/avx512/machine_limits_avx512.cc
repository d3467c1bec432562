#include "cpu/kernels/limits/read_loops.h"

namespace kvlathe {

const ReadLoop* const kReadLoopsOfAvx512 = kReadLoops;

}  // namespace kvlathe

#include "cpu/kernels/limits/read_loops.h"

namespace kvlathe {

const ReadLoop* const kReadLoopsOfAvx2 = kReadLoops;

}  // namespace kvlathe

#include "kernels/cpu/limits/read_loops.h"

namespace kvlathe {

const ReadLoop* const kReadLoopsOfAvx2 = kReadLoops;

}  // namespace kvlathe

#include "cpu/kernels/limits/integer_dots.h"
#include "cpu/kernels/limits/read_loops.h"

namespace kvlathe {

const ReadLoop* const kReadLoopsOfAvx2 = kReadLoops;

const IntegerDots kIntegerDotsOfAvx2 = {RunIntegerDots, kDotsOfStep};

}  // namespace kvlathe

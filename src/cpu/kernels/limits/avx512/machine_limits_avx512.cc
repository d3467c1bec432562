#include "cpu/kernels/limits/integer_dots.h"
#include "cpu/kernels/limits/read_loops.h"

namespace kvlathe {

const ReadLoop* const kReadLoopsOfAvx512 = kReadLoops;

const IntegerDots kIntegerDotsOfAvx512 = {RunIntegerDots, kDotsOfStep};

}  // namespace kvlathe

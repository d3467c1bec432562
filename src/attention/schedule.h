// How attention work is split over workers.
#pragma once

namespace kvlathe {

enum class Schedule {
  kStatic,  // a (sequence, KV head) to a worker, round robin
  kLpt,  // whole (sequence, KV head) jobs, longest first to the least loaded (the papers' decode)
  kBalanced,  // split along the rows and the entries so that all workers finish together
};

}  // namespace kvlathe

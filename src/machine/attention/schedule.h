// How attention work is split over workers.
#pragma once

#include <string_view>

namespace kvlathe {

enum class Schedule {
  kStatic,  // a (sequence, KV head) to a worker, round robin
  kLpt,  // whole (sequence, KV head) jobs, longest first to the least loaded (the papers' decode)
  kBalanced,  // split along the rows and the entries so that all workers finish together
};

// The name of a schedule on the command line: "static", "lpt" or "balanced".
constexpr std::string_view ScheduleName(Schedule schedule) {
  switch (schedule) {
    case Schedule::kStatic:
      return "static";
    case Schedule::kLpt:
      return "lpt";
    case Schedule::kBalanced:
      break;
  }
  return "balanced";
}

}  // namespace kvlathe

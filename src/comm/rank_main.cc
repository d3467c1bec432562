// One rank of a group that mpi_communicator_test starts by mpirun; it does what its argument says:
//   cases      everything that communicator_cases.h checks
//   idle       ranks wait for work for three seconds; rank 0 prints what share of a processor each
//   used stop, kill the ranks add sums, until rank 1 stops (SIGSTOP) or dies (SIGKILL); who is told
//   so ends the group forever    as stop, but the others wait for a message of rank 0, which waits
//   for rank 1
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/communicator_cases.h"
#include "comm/mpi_communicator.h"

namespace kvlathe {
namespace {

// Seconds of processor that a process of this machine has used.
double ProcessorSeconds(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string line(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  double ticks = 0;
  for (int i = 3; i <= 15 && fields >> field; ++i) {
    if (i >= 14) ticks += std::stod(field);
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

Status MeasureIdle(Communicator& all) {
  const int pid = ::getpid();
  std::vector<int> pids(static_cast<size_t>(all.size()));
  KVL_RETURN_IF_ERROR(
      all.AllGather(std::as_bytes(std::span(&pid, 1)), std::as_writable_bytes(std::span(pids))));
  if (all.rank() != 0) return all.ReceiveMessage(0, /*wait_forever=*/true).status();
  constexpr double kSeconds = 3;
  std::vector<double> before(pids.size());
  std::transform(pids.begin(), pids.end(), before.begin(), ProcessorSeconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    const double used = ProcessorSeconds(pids[rank]) - before[rank];
    std::printf("rank %zu used %.2f percent\n", rank, 100 * used / kSeconds);
  }
  for (int rank = 1; rank < all.size(); ++rank) KVL_RETURN_IF_ERROR(all.SendMessage(rank, {}));
  return OkStatus();
}

Status AddUntilRankOneFails(Communicator& all, int signal, bool others_wait_forever) {
  std::vector<float> values(5000, 1.0f);
  for (int round = 0;; ++round) {
    if (all.rank() == 1 && round == 20) {
      const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
      std::printf("rank 1 fails at %.3f\n", now.count());
      std::fflush(stdout);
      ::kill(::getpid(), signal);
    }
    if (others_wait_forever && all.rank() > 1) {
      KVL_RETURN_IF_ERROR(all.ReceiveMessage(0, /*wait_forever=*/true).status());
    } else if (others_wait_forever) {
      KVL_RETURN_IF_ERROR(all.rank() == 0 ? all.ReceiveMessage(1).status()
                                          : all.SendMessage(0, {}));
    } else {
      KVL_RETURN_IF_ERROR(all.AllReduce(values));
    }
  }
}

Status DoCase(Communicator& all, std::string_view name) {
  if (name == "cases") {
    KVL_RETURN_IF_ERROR(CheckCommunicator(all));
    if (!IsStartedByMpi() || !JoinMpi().ok()) return OkStatus();
    return Error(StatusCode::kInternal, "a rank joined its group twice");
  }
  if (name == "idle") return MeasureIdle(all);
  if (name == "stop") return AddUntilRankOneFails(all, SIGSTOP, /*others_wait_forever=*/false);
  if (name == "kill") return AddUntilRankOneFails(all, SIGKILL, /*others_wait_forever=*/false);
  if (name == "forever") return AddUntilRankOneFails(all, SIGSTOP, /*others_wait_forever=*/true);
  return Error(StatusCode::kInvalidArgument, "no such case: {}", name);
}

int RunRank(std::string_view name) {
  auto all = JoinMpi();
  if (!all.ok()) {
    std::fprintf(stderr, "%s\n", MessageOf(all.status()).c_str());
    return 1;
  }
  const Status status = DoCase(**all, name);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", MessageOf(status).c_str());
    EndGroup(1);
  }
  std::printf("rank %d of %d is done\n", (*all)->rank(), (*all)->size());
  return 0;
}

}  // namespace
}  // namespace kvlathe

int main(int n_arguments, char** arguments) {
  return kvlathe::RunRank(n_arguments > 1 ? arguments[1] : "");
}

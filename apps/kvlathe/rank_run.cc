#include "kvlathe/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "base/threads.h"
#include "comm/mpi_communicator.h"
#include "kvlathe/open_workspace.h"
#include "lockstep/rank_group.h"

namespace kvlathe {
namespace {

// Several ranks on one computer share its processors, unless their starter has bound each to its
// own. Binding that leaves processors idle is what mpirun does by itself with one or two ranks.
void ShareProcessors(const RankGroup& group, ModelOptions* options) {
  if (options->n_threads > 0) return;
  const auto n_online = static_cast<int>(std::thread::hardware_concurrency());
  const int n_here = group.CountHere(), n_bound = AvailableProcessors();
  if (n_bound >= n_online) {
    options->n_threads = std::max(1, n_online / n_here);
  } else if (group.is_leader() && n_bound < n_online / n_here) {
    PrintNote({Note::Kind::kWarning,
               fmt::format("mpirun has bound each rank to {} of {} processors; start it with "
                           "--bind-to none, or give each rank its share",
                           n_bound, n_online)});
  }
}

// Runs what must not throw.
template <typename F>
Status WithoutExceptions(const F& run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return Error(StatusCode::kResourceExhausted,
                 "out of memory; use more ranks, a smaller model, context or --kv-memory");
  } catch (const std::exception& error) {
    return Error(StatusCode::kInternal, "internal error: {}", error.what());
  }
}

Status Lead(const Verbs& verbs, RankGroup* group) {
  KVL_RETURN_IF_ERROR(WithoutExceptions(verbs.chosen));
  if (std::fflush(stdout) != 0) {
    return Error(StatusCode::kResourceExhausted, "standard output cannot be written");
  }
  if (group->leader != nullptr) group->leader->Dismiss();
  return OkStatus();
}

// `agreed` becomes whether all ranks have opened the model; until then rank 0 reports what is
// wrong.
Status FollowLeader(const RankedVerb& verb, bool* agreed) {
  // mpirun hands a signal on to all ranks. Rank 0 finishes what it has begun and lets the others
  // go.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  return WithoutExceptions([&]() -> Status {
    KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Workspace> workspace, verb.open());
    *agreed = true;
    return workspace->Follow();
  });
}

// Ranks that refuse the same thing end alike, because mpirun ends with what the first of them said.
int ExitCodeOf(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace

int ReportError(const Status& status) {
  std::string message = MessageOf(status);
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  fmt::print(stderr, "kvlathe: {}\n", message);
  return ExitCodeOf(status);
}

// One process alone does not start MPI, which the starter of a cluster may not serve.
bool RunsOnRanks(const Verbs& verbs) {
  return verbs.ranked != nullptr && (verbs.ranked->grid.n_ranks() > 1 || ProcessesOfMpirun().n > 1);
}

int RunOnRanks(const Verbs& verbs, const std::string& command) {
  const RankedVerb& verb = *verbs.ranked;
  if (verb.grid.n_ranks() == 1) {
    const Status refused =
        Error(StatusCode::kInvalidArgument,
              "mpirun has started {} processes, and each would do the same alone; add --tp {} for "
              "them to share the model",
              ProcessesOfMpirun().n, ProcessesOfMpirun().n);
    return ProcessesOfMpirun().idx == 0 ? ReportError(refused) : ExitCodeOf(refused);
  }
  if (verb.model->device_text != "cpu") {
    const Status refused =
        Error(StatusCode::kInvalidArgument,
              "--device {}: ranks share a model on processors alone; leave --tp and --pp out, or "
              "take --device cpu",
              verb.model->device_text);
    return ProcessesOfMpirun().idx == 0 ? ReportError(refused) : ExitCodeOf(refused);
  }
  StatusOr<std::unique_ptr<Communicator>> all = JoinMpi();
  if (!all.ok()) return ReportError(all.status());
  const int rank = (*all)->rank();
  const std::string host = (*all)->host_of(rank);
  RankPatience patience;
  patience.step = std::chrono::milliseconds(static_cast<int64_t>(verb.timeout_s * 1000));
  StatusOr<std::unique_ptr<RankGroup>> group = MakeRankGroup(*std::move(all), verb.grid, patience);
  if (!group.ok()) return rank == 0 ? ReportError(group.status()) : ExitCodeOf(group.status());
  (*group)->command = command;
  (*group)->n_threads_alone = verb.model->n_threads;
  ShareProcessors(**group, verb.model);
  (*group)->on_lost = [](const Status& status) { EndGroup(ReportError(status)); };
  verb.model->ranks = group->get();
  bool agreed = false;
  const Status status = rank == 0 ? Lead(verbs, group->get()) : FollowLeader(verb, &agreed);
  if (status.ok()) return 0;
  if (rank != 0 && !agreed) return ExitCodeOf(status);
  const int code = ReportError(
      rank == 0 ? status
                : Error(status.code(), "rank {} on {}: {}", rank, host, MessageOf(status)));
  EndGroup(code);
}

}  // namespace kvlathe

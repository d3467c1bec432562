#include "comm/mpi_communicator.h"

// Without the C++ names of MPI 2, which would need another library.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/peer_communicator.h"
#include "comm/thread_communicator.h"
#include "comm/transport.h"

namespace kvlathe {
namespace {

static_assert(sizeof(MPI_Request) == sizeof(std::uintptr_t), "requests of OpenMPI are pointers");

std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int n_chars = 0;
  if (MPI_Error_string(code, text, &n_chars) != MPI_SUCCESS) return fmt::format("error {}", code);
  return std::string(text, static_cast<size_t>(n_chars));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(int rank, std::vector<std::string> hosts) : Transport(rank, std::move(hosts)) {}
  ~MpiTransport() override {
    if (failure().ok()) MPI_Finalize();
  }

  Status Start(Transfer* transfer) override {
    MPI_Request request = MPI_REQUEST_NULL;
    const int n_bytes = static_cast<int>(transfer->bytes.size());
    const int code = transfer->is_send
                         ? MPI_Isend(transfer->bytes.data(), n_bytes, MPI_BYTE, transfer->peer,
                                     transfer->channel, MPI_COMM_WORLD, &request)
                         : MPI_Irecv(transfer->bytes.data(), n_bytes, MPI_BYTE, transfer->peer,
                                     transfer->channel, MPI_COMM_WORLD, &request);
    transfer->handle = std::bit_cast<std::uintptr_t>(request);
    return StatusOf(code, *transfer);
  }

  Status Poll(Transfer* transfer) override {
    MPI_Request request = std::bit_cast<MPI_Request>(transfer->handle);
    int is_done = 0;
    MPI_Status arrived;
    KVL_RETURN_IF_ERROR(StatusOf(MPI_Test(&request, &is_done, &arrived), *transfer));
    transfer->handle = std::bit_cast<std::uintptr_t>(request);
    transfer->is_done = is_done != 0;
    if (transfer->is_done && !transfer->is_send) {
      int n_bytes = 0;
      MPI_Get_count(&arrived, MPI_BYTE, &n_bytes);
      if (n_bytes != static_cast<int>(transfer->bytes.size())) return WrongSize(*transfer);
    }
    return OkStatus();
  }

 private:
  Status WrongSize(const Transfer& transfer) const {
    return Error(StatusCode::kInternal,
                 "rank {} on {} sent another number of bytes than the {} that are received; do all "
                 "ranks run the same program with the same options?",
                 transfer.peer, hosts()[static_cast<size_t>(transfer.peer)], transfer.bytes.size());
  }

  Status StatusOf(int code, const Transfer& transfer) const {
    if (code == MPI_SUCCESS) return OkStatus();
    int error_class = MPI_ERR_OTHER;
    MPI_Error_class(code, &error_class);
    if (error_class == MPI_ERR_TRUNCATE) return WrongSize(transfer);
    return Error(StatusCode::kUnavailable, "rank {} on {} cannot be reached: {}", transfer.peer,
                 hosts()[static_cast<size_t>(transfer.peer)], MpiErrorText(code));
  }
};

// Every rank learns every host's name.
Status ExchangeHosts(MpiTransport* transport, PeerCommunicator* all) {
  static_assert(MPI_MAX_PROCESSOR_NAME <= 256);
  std::vector<char> mine(256, '\0');
  int n_chars = 0;
  if (MPI_Get_processor_name(mine.data(), &n_chars) != MPI_SUCCESS) n_chars = 0;
  std::fill(mine.begin() + n_chars, mine.end(), '\0');
  std::vector<char> names(mine.size() * static_cast<size_t>(all->size()));
  KVL_RETURN_IF_ERROR(
      all->AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(names))));
  std::vector<std::string> hosts;
  for (size_t begin = 0; begin < names.size(); begin += mine.size()) {
    hosts.emplace_back(&names[begin], ::strnlen(&names[begin], mine.size()));
  }
  transport->set_hosts(std::move(hosts));
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Communicator>> JoinMpi() {
  if (!IsStartedByMpi()) return std::move(MakeThreadGroup(1)[0]);
  int is_started = 0;
  MPI_Initialized(&is_started);
  if (is_started != 0) {
    return Error(StatusCode::kInvalidArgument, "a process joins its MPI group only once");
  }
  // Serialized: engines call from a thread of their own, which need not be the one that joined.
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED) {
    return Error(StatusCode::kUnavailable, "MPI does not start ({})",
                 code == MPI_SUCCESS ? "it takes calls of one thread only" : MpiErrorText(code));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  int n_ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
  const auto transport = std::make_shared<MpiTransport>(
      rank, std::vector<std::string>(static_cast<size_t>(n_ranks), "an unknown host"));
  PeerCommunicator nameless(transport);
  nameless.set_timeout(std::chrono::seconds(30));
  KVL_RETURN_IF_ERROR(ExchangeHosts(transport.get(), &nameless));
  return std::make_unique<PeerCommunicator>(transport);
}

void EndGroup(int exit_code) {
  std::fflush(nullptr);
  int is_started = 0;
  int is_over = 0;
  MPI_Initialized(&is_started);
  MPI_Finalized(&is_over);
  if (is_started != 0 && is_over == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  ::_exit(exit_code);
}

}  // namespace kvlathe

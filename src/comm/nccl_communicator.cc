#include "comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/wait_pause.h"

namespace kvlathe {
namespace {

std::vector<std::string> AllHostsOf(const Communicator& host) {
  std::vector<std::string> hosts;
  hosts.reserve(static_cast<size_t>(host.size()));
  for (int rank = 0; rank < host.size(); ++rank) hosts.push_back(host.host_of(rank));
  return hosts;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, int device)
      : Communicator(host->rank(), AllHostsOf(*host)), host_(std::move(host)), device_(device) {}
  ~NcclCommunicator() override {
    if (cudaSetDevice(device_) != cudaSuccess) return;
    // A clean end waits for the other ranks; what has failed is given up.
    if (comm_ != nullptr && Run([&] { return ncclCommFinalize(comm_); }).ok()) {
      ncclCommDestroy(comm_);
    } else if (comm_ != nullptr) {
      ncclCommAbort(comm_);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status Join();

  Status AllReduce(std::span<float> values) override {
    if (values.empty()) return failure_;
    return Run([&] {
      return ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat, ncclSum, comm_,
                           stream_);
    });
  }
  Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    KVL_CHECK_EQ(all.size(), mine.size() * static_cast<size_t>(size()));
    if (mine.empty()) return failure_;
    return Run([&] {
      return ncclAllGather(mine.data(), all.data(), mine.size(), ncclInt8, comm_, stream_);
    });
  }
  Status Broadcast(int root, std::span<std::byte> bytes) override {
    if (bytes.empty()) return failure_;
    return Run([&] {
      return ncclBroadcast(bytes.data(), bytes.data(), bytes.size(), ncclInt8, root, comm_,
                           stream_);
    });
  }
  Status Send(int to, std::span<const std::byte> bytes) override {
    if (bytes.empty()) return failure_;
    return Run([&] { return ncclSend(bytes.data(), bytes.size(), ncclInt8, to, comm_, stream_); });
  }
  Status Receive(int from, std::span<std::byte> bytes) override {
    if (bytes.empty()) return failure_;
    return Run(
        [&] { return ncclRecv(bytes.data(), bytes.size(), ncclInt8, from, comm_, stream_); });
  }
  Status SendMessage(int to, std::span<const std::byte> bytes) override {
    return host_->SendMessage(to, bytes);
  }
  StatusOr<std::vector<std::byte>> ReceiveMessage(int from, bool wait_forever) override {
    return host_->ReceiveMessage(from, wait_forever);
  }
  StatusOr<std::unique_ptr<Communicator>> Split(std::span<const int> ranks) override {
    KVL_ASSIGN_OR_RETURN(auto part, host_->Split(ranks));
    return JoinNccl(std::move(part), device_);
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    Communicator::set_timeout(timeout);
    host_->set_timeout(timeout);
  }

 private:
  // Begins work of this rank's GPU and waits for its end; after an error there is no more.
  Status Run(const std::function<ncclResult_t()>& begin) {
    if (failure_.ok()) failure_ = BeginAndWait(begin);
    return failure_;
  }

  Status BeginAndWait(const std::function<ncclResult_t()>& begin) {
    KVL_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_)));
    KVL_RETURN_IF_ERROR(StatusOf(begin()));
    const auto start = WaitPause::Clock::now();
    WaitPause pause;
    while (true) {
      ncclResult_t state = ncclInProgress;
      KVL_RETURN_IF_ERROR(StatusOf(ncclCommGetAsyncError(comm_, &state)));
      KVL_RETURN_IF_ERROR(StatusOf(state));
      if (state == ncclSuccess) {
        const cudaError_t work = cudaStreamQuery(stream_);
        if (work == cudaSuccess) return OkStatus();
        if (work != cudaErrorNotReady) return StatusOf(work);
      }
      if (pause.Next() - start > timeout()) return NoAnswer();
    }
  }

  // NCCL does not say who is missing; that rank does not come here either.
  Status NoAnswer() {
    std::vector<std::byte> all(static_cast<size_t>(size()));
    const std::byte here{1};
    KVL_RETURN_IF_ERROR(host_->AllGather({&here, 1}, all));
    return Error(StatusCode::kUnavailable,
                 "rank {} on {}: NCCL did not finish within {} s, though all ranks answer; "
                 "NCCL_DEBUG=INFO in "
                 "the environment makes it say more",
                 rank(), host_of(rank()), std::chrono::duration<double>(timeout()).count());
  }

  Status StatusOf(ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return OkStatus();
    return Error(StatusCode::kUnavailable, "rank {} on {}, GPU {}: NCCL: {}", rank(),
                 host_of(rank()), device_, ncclGetErrorString(result));
  }
  Status StatusOf(cudaError_t error) const {
    if (error == cudaSuccess) return OkStatus();
    return Error(StatusCode::kUnavailable, "rank {} on {}, GPU {}: CUDA: {}", rank(),
                 host_of(rank()), device_, cudaGetErrorString(error));
  }

  std::unique_ptr<Communicator> host_;
  int device_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  Status failure_;
};

Status NcclCommunicator::Join() {
  // Where rank 0 has no id it does not send one, and the others hear nothing from it.
  ncclUniqueId id{};
  if (rank() == 0) KVL_RETURN_IF_ERROR(StatusOf(ncclGetUniqueId(&id)));
  KVL_RETURN_IF_ERROR(host_->Broadcast(0, std::as_writable_bytes(std::span(id.internal))));
  KVL_RETURN_IF_ERROR(StatusOf(cudaSetDevice(device_)));
  KVL_RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that calls return, and waiting has its limit here
  return Run([&] { return ncclCommInitRankConfig(&comm_, size(), id, rank(), &config); });
}

}  // namespace

StatusOr<std::unique_ptr<Communicator>> JoinNccl(std::unique_ptr<Communicator> host, int device) {
  auto joined = std::make_unique<NcclCommunicator>(std::move(host), device);
  KVL_RETURN_IF_ERROR(joined->Join());
  return joined;
}

}  // namespace kvlathe

#include "training/retrofit/workers.h"

#include <charconv>

#ifdef KVLATHE_HAS_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

namespace kvlathe {
namespace {

using torch::Tensor;

struct Place {
  std::string host;
  int port = 0;
};

StatusOr<Place> ParsePlace(const std::string& meet) {
  const size_t colon = meet.rfind(':');
  Place place{meet.substr(0, colon)};
  bool is_port = colon != meet.npos && colon > 0;
  if (is_port) {
    const char *begin = meet.data() + colon + 1, *end = meet.data() + meet.size();
    const auto [stop, error] = std::from_chars(begin, end, place.port);
    is_port = error == std::errc() && stop == end && place.port > 0 && place.port < 65536;
  }
  if (is_port) return place;
  return Error(StatusCode::kInvalidArgument,
               "--meet '{}': must be HOST:PORT, where worker 0 listens, such as 127.0.0.1:29500",
               meet);
}

#ifdef KVLATHE_HAS_GLOO

// The first line of what libtorch or gloo say.
std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

class GlooWorkers : public Workers {
 public:
  GlooWorkers(const WorkersOptions& options, const Place& place)
      : Workers(options.count, options.index) {
    const auto timeout = std::chrono::seconds(options.timeout_s);
    c10d::TCPStoreOptions of_store;
    of_store.port = static_cast<uint16_t>(place.port);
    of_store.isServer = options.index == 0;
    of_store.numWorkers = static_cast<size_t>(options.count);
    of_store.timeout = timeout;
    const auto store = c10::make_intrusive<c10d::TCPStore>(place.host, of_store);
    const auto of_group = c10d::ProcessGroupGloo::Options::create(timeout);
    const bool is_local = place.host == "localhost" || place.host.starts_with("127.");
    of_group->devices = {is_local ? c10d::ProcessGroupGloo::createDeviceForHostname(place.host)
                                  : c10d::ProcessGroupGloo::createDefaultDevice()};
    group_ =
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.index, options.count, of_group);
  }

  Status AddUp(const std::vector<Tensor>& tensors) override {
    // One message, in one type, from CPU memory.
    std::vector<Tensor> flat;
    for (const Tensor& tensor : tensors) flat.push_back(tensor.detach().reshape({-1}));
    Tensor message = torch::cat(flat).cpu();
    try {
      std::vector<Tensor> messages = {message};
      group_->allreduce(messages)->wait();
    } catch (const std::exception& error) {
      return Error(StatusCode::kUnavailable, "worker {}: another worker is gone: {}", index(),
                   FirstLine(error));
    }
    int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      Tensor target = tensor.detach();
      target.copy_(message.narrow(0, at, target.numel()).view(target.sizes()));
      at += target.numel();
    }
    return OkStatus();
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

#endif

}  // namespace

bool Workers::AreAvailable() {
#ifdef KVLATHE_HAS_GLOO
  return true;
#else
  return false;
#endif
}

StatusOr<std::unique_ptr<Workers>> Workers::Join(const WorkersOptions& options) {
  if (options.count < 2 || options.index < 0 || options.index >= options.count) {
    return Error(StatusCode::kInvalidArgument,
                 "--worker {} of --workers {}: there must be two workers or more, counted from 0",
                 options.index, options.count);
  }
  KVL_ASSIGN_OR_RETURN(const Place place, ParsePlace(options.meet));
#ifdef KVLATHE_HAS_GLOO
  try {
    return std::make_unique<GlooWorkers>(options, place);
  } catch (const std::exception& error) {
    return Error(StatusCode::kUnavailable,
                 "--meet {}: worker {} of {} does not meet the others: {}", options.meet,
                 options.index, options.count, FirstLine(error));
  }
#else
  return Error(StatusCode::kUnimplemented,
               "--meet {}:{}: this build has one worker; install gloo's headers (Debian: "
               "libgloo-dev) and build again",
               place.host, place.port);
#endif
}

StatusOr<bool> Workers::AnyOf(bool is_so) {
  const Tensor sum = torch::full({1}, is_so ? 1.0 : 0.0, torch::kDouble);
  KVL_RETURN_IF_ERROR(AddUp({sum}));
  return sum.item<double>() > 0;
}

}  // namespace kvlathe

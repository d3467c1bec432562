// Any bytes are either a message of a rank, and then what they say is written the same again, or
// kDataLoss.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "lockstep/order.h"

namespace {

template <typename Message>
void CheckMessage(const kvlathe::StatusOr<Message>& message, std::span<const std::byte> bytes) {
  if (!message.ok()) {
    KVL_CHECK(message.status().code() == kvlathe::StatusCode::kDataLoss);
    return;
  }
  KVL_CHECK(kvlathe::Encode(*message) == std::vector<std::byte>(bytes.begin(), bytes.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const auto bytes = std::as_bytes(std::span(data, n_bytes));
  CheckMessage(kvlathe::DecodeOrder(bytes), bytes);
  CheckMessage(kvlathe::DecodeAnswer(bytes), bytes);
  return 0;
}

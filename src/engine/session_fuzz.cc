// Any bytes are either the state of a session, and then what they say is written and read the same
// again, or give one printable line that names the file.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "engine/session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  constexpr int kVocabulary = 4096;
  const std::string_view state(reinterpret_cast<const char*>(data), n_bytes);
  const auto session = kvlathe::ParseSessionState(state, kVocabulary, "fuzz");
  if (!session.ok()) {
    const std::string message = kvlathe::MessageOf(session.status());
    KVL_CHECK(message.starts_with("fuzz: "));
    KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
    return 0;
  }
  KVL_CHECK_EQ(static_cast<size_t>(session->turn_ends.back()), session->tokens.size());
  KVL_CHECK(session->sampling.Check().ok());
  const std::string written = kvlathe::SessionState(*session);
  const auto again = kvlathe::ParseSessionState(written, kVocabulary, "fuzz");
  KVL_CHECK(again.ok());
  KVL_CHECK(kvlathe::SessionState(*again) == written);
  return 0;
}

// Any bytes either parse, and then their canonical text parses back to the same spec, or give an
// error of one printable line.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kv/spec/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  using kvlathe::Spec;
  const auto spec = Spec::Parse({reinterpret_cast<const char*>(data), n_bytes});
  if (!spec.ok()) {
    KVL_CHECK(
        std::ranges::all_of(spec.status().message(), [](char c) { return c >= 32 && c < 127; }));
    return 0;
  }
  const std::string canonical = spec->ToString();
  const auto again = Spec::Parse(canonical);
  KVL_CHECK(again.ok());
  KVL_CHECK(*again == *spec);
  KVL_CHECK(again->ToString() == canonical);
  return 0;
}

#include "io/json_checksum.h"

#include <fmt/format.h>

#include <span>
#include <string>

#include "base/crc32c.h"

namespace kvlathe {
namespace {

constexpr const char* kChecksumKey = "crc32c";

std::string ChecksumOf(nlohmann::json object) {
  object.erase(kChecksumKey);
  const std::string text = object.dump();
  return fmt::format("{:08x}", ExtendCrc32c(0, std::as_bytes(std::span(text))));
}

}  // namespace

void AddChecksum(nlohmann::ordered_json* object) {
  // As it will be read: what JSON does not tell apart is alike then.
  (*object)[kChecksumKey] = ChecksumOf(nlohmann::json::parse(object->dump()));
}

bool FitsItsChecksum(const nlohmann::json& object) {
  if (!object.is_object()) return true;
  const auto entry = object.find(kChecksumKey);
  return entry == object.end() || *entry == ChecksumOf(object);
}

}  // namespace kvlathe

// JSON files that kvlathe writes and reads itself have a checksum inside.
#pragma once

#include <nlohmann/json.hpp>

namespace kvlathe {

// Adds the entry "crc32c" to an object: the CRC-32C, in eight hexadecimal digits, of all its other
// entries in the order of their names, without white space.
void AddChecksum(nlohmann::ordered_json* object);

// False where the object has a checksum that does not fit its other entries. One without, of an
// older build or of a person, has nothing to fit.
bool FitsItsChecksum(const nlohmann::json& object);

}  // namespace kvlathe

// Safetensors files that kvlathe writes itself have a checksum inside, since the format has none.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace kvlathe {

// The metadata to write with these tensors: with the entry "crc32c", eight hexadecimal digits, the
// CRC-32C of all other entries and of the names, types, shapes and data of all tensors.
std::map<std::string, std::string> WithChecksum(const std::vector<TensorToWrite>& tensors,
                                                std::map<std::string, std::string> metadata);

// False where the file has no such entry, or it does not fit what was read. It reads all data.
bool HasRightChecksum(const SafetensorsReader& file);

}  // namespace kvlathe

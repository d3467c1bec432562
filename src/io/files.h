// Small files are read whole with a bound, and written atomically; JSON comes with an error that
// names the place.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

// At most max_bytes; a larger file, a directory or an unreadable one is an error that names it.
StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
// kDataLoss with file and byte position on a syntax error.
StatusOr<nlohmann::json> ReadJsonFile(const std::string& path,
                                      int64_t max_bytes = int64_t{64} << 20);
// Through a temporary file in the same folder and a rename.
Status WriteFileAtomically(const std::string& path, std::string_view contents);

bool FileExists(const std::string& path);
bool DirectoryExists(const std::string& path);

}  // namespace kvlathe

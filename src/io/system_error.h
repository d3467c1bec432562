// What the operating system refused becomes a Status that names the file.
#pragma once

#include <string_view>

#include "base/status.h"

namespace kvlathe {

// "PATH: cannot open: No such file or directory". A missing file is kNotFound; a full disk, quota
// or file size limit and missing memory are kResourceExhausted; a directory in a file's place is
// kInvalidArgument; all else is kInternal.
Status SystemError(int error_number, std::string_view action, std::string_view path);

}  // namespace kvlathe

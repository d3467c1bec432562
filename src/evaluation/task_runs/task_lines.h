// The lines of a task file are read one after the other, and refused with file and line number when
// they are not what a form asks for.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// A JSON object on a line of its own, and how to complain about it. The functions that read a field
// refuse the line when the field is missing or of another type.
struct TaskLine {
  std::string_view path;
  int number;  // from 1
  nlohmann::json value;

  template <typename... Args>
  Status Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kInvalidArgument, "{}:{}: {}", path, number,
                 fmt::format(format, std::forward<Args>(args)...));
  }
  bool Has(const char* field) const { return value.contains(field); }
  StatusOr<std::string> Text(const char* field) const;
  // Text that is more than white space.
  StatusOr<std::string> FullText(const char* field) const;
  // One text or more.
  StatusOr<std::vector<std::string>> Texts(const char* field) const;
  // Data sets write labels as 3 and as "3".
  StatusOr<int64_t> Integer(const char* field) const;
};

// The whole file, unless it is compressed.
StatusOr<std::string> ReadUnpackedFile(const std::string& path);

// What `text` holds up to the line feed, which goes away with it. `text` must not be empty.
std::string_view TakeLine(std::string_view* text);

// Reads `text`, the contents of the file `path`, as JSON Lines. Blank lines are passed over.
Status ForEachTaskLine(std::string_view path, std::string_view text,
                       const std::function<Status(const TaskLine&)>& read);
// Reads the file first.
Status ForEachTaskLine(const std::string& path, const std::function<Status(const TaskLine&)>& read);

// Without white space (ASCII) at both ends.
std::string_view Trimmed(std::string_view text);

}  // namespace kvlathe

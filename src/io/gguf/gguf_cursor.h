// A cursor is where a reader of a GGUF header stands in the file; the errors that all readers give
// are here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "io/byte_reader.h"

namespace kvlathe {

class GgufCursor {
 public:
  // Both views must outlive the cursor.
  GgufCursor(std::span<const std::byte> file, std::string_view path)
      : file_(file), path_(path), reader_(file) {}

  std::string_view path() const { return path_; }
  uint64_t bytes_left() const { return reader_.rest().size(); }
  int64_t file_bytes() const { return std::ssize(file_); }
  int64_t position() const { return file_bytes() - static_cast<int64_t>(bytes_left()); }

  // What was read since the cursor stood at `position`.
  std::string_view BytesSince(int64_t position) const {
    return {reinterpret_cast<const char*>(file_.data()) + position,
            static_cast<size_t>(this->position() - position)};
  }

  // Every Read is false, and takes nothing, when the file ends before.
  template <typename T>
  bool Read(T* value) {
    return reader_.Read(value);
  }
  bool ReadBytes(uint64_t n_bytes, std::string_view* bytes) {
    return reader_.ReadBytes(n_bytes, bytes);
  }
  // A length, then as many bytes.
  bool ReadText(std::string_view* text) {
    uint64_t n_bytes = 0;
    return reader_.Read(&n_bytes) && reader_.ReadBytes(n_bytes, text);
  }

  template <typename... Args>
  Status Damaged(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kDataLoss, "{}: {}; the file is damaged, download it again", path_,
                 fmt::format(format, std::forward<Args>(args)...));
  }
  // "N bytes end inside the counts; ...".
  template <typename... Args>
  Status Truncated(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kDataLoss,
                 "{}: {} bytes end {}; the file is truncated or damaged, download it again", path_,
                 file_.size(), fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  Status Unread(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kUnimplemented, "{}: {}", path_,
                 fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::span<const std::byte> file_;
  std::string_view path_;
  ByteReader reader_;
};

}  // namespace kvlathe

#include "calibration/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"
#include "base/crc32c.h"
#include "io/atomic_file.h"
#include "io/files.h"
#include "io/system_error.h"

namespace kvlathe {
namespace {

constexpr char kMagic[] = "kvlathe calibration sums 1\n";

// The file begins with it; the sums and their CRC follow.
struct Header {
  char magic[32] = {};
  char key[32] = {};  // not terminated
  int64_t n_done = 0;
  int64_t n_bytes = 0;  // of the sums
};

Header HeaderOf(const CheckpointPlace& place, int64_t n_done, const SumBytes& sums) {
  Header header;
  std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
  KVL_CHECK_EQ(place.key.size(), sizeof(header.key));
  std::copy(place.key.begin(), place.key.end(), header.key);
  header.n_done = n_done;
  for (const std::span<std::byte> piece : sums) header.n_bytes += std::ssize(piece);
  return header;
}

std::span<const std::byte> BytesOf(const Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

bool Read(std::FILE* file, void* to, size_t n_bytes) {
  return std::fread(to, 1, n_bytes, file) == n_bytes;
}

}  // namespace

Status WriteCheckpoint(const CheckpointPlace& place, int64_t n_done, const SumBytes& sums) {
  const Header header = HeaderOf(place, n_done, sums);
  KVL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(place.path));
  uint32_t crc = ExtendCrc32c(0, BytesOf(header));
  KVL_RETURN_IF_ERROR(file.Write(&header, sizeof(header)));
  for (const std::span<std::byte> piece : sums) {
    crc = ExtendCrc32c(crc, piece);
    KVL_RETURN_IF_ERROR(file.Write(piece.data(), std::ssize(piece)));
  }
  KVL_RETURN_IF_ERROR(file.Write(&crc, sizeof(crc)));
  return file.Commit();
}

StatusOr<int64_t> ReadCheckpoint(const CheckpointPlace& place, const SumBytes& sums) {
  if (!FileExists(place.path)) return 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(place.path.c_str(), "rb"), [](std::FILE* f) { return std::fclose(f); });
  if (file == nullptr) return SystemError(errno, "cannot open", place.path);
  Header header;
  const bool is_whole = Read(file.get(), &header, sizeof(header));
  const Header expected = HeaderOf(place, header.n_done, sums);
  if (!is_whole || std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0) {
    return Error(StatusCode::kInvalidArgument, "{}: not a checkpoint of this version of kvlathe",
                 place.path);
  }
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: a checkpoint of another model, text or setting of calibration", place.path);
  }
  uint32_t crc = ExtendCrc32c(0, BytesOf(header)), stored = 0;
  bool is_there = header.n_done > 0;
  for (const std::span<std::byte> piece : sums) {
    is_there = is_there && Read(file.get(), piece.data(), piece.size());
    crc = ExtendCrc32c(crc, piece);
  }
  if (!is_there || !Read(file.get(), &stored, sizeof(stored)) || stored != crc) {
    return Error(StatusCode::kDataLoss, "{}: a damaged checkpoint", place.path);
  }
  return header.n_done;
}

}  // namespace kvlathe

#include "hub/blob_fetch.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/units.h"
#include "hub/part_file.h"
#include "hub/retries.h"
#include "io/file_lock.h"

namespace kvlathe {
namespace {

constexpr std::chrono::milliseconds kLockPeriod{100};

// Of a file, or 0 if there is none.
int64_t SizeOfFile(const std::string& path) {
  std::error_code error;
  const auto n_bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(n_bytes);
}

}  // namespace

bool BlobFetch::IsThere(const WantedFile& file) const {
  std::error_code error;
  const std::string path = cache_.BlobPath(file.facts.etag);
  return std::filesystem::is_regular_file(path, error) && SizeOfFile(path) == file.facts.n_bytes;
}

int64_t BlobFetch::MissingBytes(const WantedFile& file) const {
  if (IsThere(file)) return 0;
  const int64_t n_there = SizeOfFile(cache_.PartPath(file.facts.etag));
  return n_there > file.facts.n_bytes ? file.facts.n_bytes : file.facts.n_bytes - n_there;
}

Status BlobFetch::Fetch(const WantedFile& file, const std::function<void(int64_t)>& on_bytes) {
  const std::string& etag = file.facts.etag;
  bool has_said = false;
  while (!IsThere(file)) {
    KVL_ASSIGN_OR_RETURN(const std::optional<FileLock> lock,
                         FileLock::TryTake(cache_.LockPath(etag)));
    if (lock.has_value()) {
      if (!IsThere(file)) KVL_RETURN_IF_ERROR(FetchBlob(file, on_bytes));
      break;
    }
    if (!has_said && news_.on_note) {
      news_.on_note(fmt::format("{}: another process is fetching {}; waiting for it", model_.Text(),
                                file.path));
    }
    has_said = true;
    std::this_thread::sleep_for(kLockPeriod);
    on_bytes(std::min(SizeOfFile(cache_.PartPath(etag)), file.facts.n_bytes));
  }
  on_bytes(file.facts.n_bytes);
  return cache_.Link(commit_, file.path, etag);
}

Status BlobFetch::FetchBlob(const WantedFile& file, const std::function<void(int64_t)>& on_bytes) {
  const HubFileFacts& facts = file.facts;
  KVL_ASSIGN_OR_RETURN(PartFile part, PartFile::Open(cache_.PartPath(facts.etag)));
  if (part.n_bytes() > facts.n_bytes) KVL_RETURN_IF_ERROR(part.StartOver());
  Retries retries(options_.retry_wait);
  bool has_started_over = false;
  while (part.n_bytes() < facts.n_bytes) {
    on_bytes(part.n_bytes());
    const int64_t n_before = part.n_bytes();
    Status status = GoOn(file, on_bytes, &part);
    if (status.code() == StatusCode::kOutOfRange) {
      if (!std::exchange(has_started_over, true)) {
        KVL_RETURN_IF_ERROR(part.StartOver());
        continue;
      }
      KVL_RETURN_IF_ERROR(part.Remove());
      status = Error(StatusCode::kDataLoss,
                     "{}: the hub has fewer bytes of {} than the {} that it says; what came was "
                     "removed",
                     model_.Text(), file.path, facts.n_bytes);
    }
    if (status.ok() && part.n_bytes() < facts.n_bytes) {
      status = Error(StatusCode::kAborted, "{}: the hub sent {} of the {} bytes of {}",
                     model_.Text(), part.n_bytes(), facts.n_bytes, file.path);
    }
    if (status.ok() || retries.Again(status, part.n_bytes() != n_before)) continue;
    return status;
  }
  if (!facts.sha256.empty() && part.Sha256OfAll() != facts.sha256) {
    KVL_RETURN_IF_ERROR(part.Remove());
    return Error(
        StatusCode::kDataLoss,
        "{}: what came of {} has the SHA-256 {} in place of {}; it was removed, and can be "
        "fetched again",
        model_.Text(), file.path, part.Sha256OfAll(), facts.sha256);
  }
  return part.MoveTo(cache_.BlobPath(facts.etag));
}

Status BlobFetch::GoOn(const WantedFile& file, const std::function<void(int64_t)>& on_bytes,
                       PartFile* part) {
  const int64_t n_bytes = file.facts.n_bytes, first = part->n_bytes();
  const BodySink sink = {
      [&](const HttpAnswer& answer) -> StatusOr<bool> {
        if (first == 0) return true;
        if (answer.status != 206) {  // a server without ranges sends all
          KVL_RETURN_IF_ERROR(part->StartOver());
          return true;
        }
        if (answer.Header("content-range").starts_with(fmt::format("bytes {}-", first))) {
          return true;
        }
        return Error(StatusCode::kDataLoss,
                     "{}: of {} the bytes from {} on were asked for, and the hub sends {}",
                     model_.Text(), file.path, first, Quoted(answer.Header("content-range")));
      },
      [&](std::string_view bytes) -> Status {
        if (static_cast<int64_t>(bytes.size()) > n_bytes - part->n_bytes()) {
          KVL_RETURN_IF_ERROR(part->StartOver());
          return Error(StatusCode::kDataLoss,
                       "{}: the hub sends more of {} than the {} bytes that it has; what came was "
                       "removed",
                       model_.Text(), file.path, n_bytes);
        }
        KVL_RETURN_IF_ERROR(part->Write(bytes));
        on_bytes(part->n_bytes());
        return OkStatus();
      }};
  return client_.Download(commit_, file.path, first, sink);
}

}  // namespace kvlathe

#include "hub/hub_fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/sha256.h"

namespace kvlathe {
namespace {

constexpr const char* kResolve = "/owner/model/resolve/";
constexpr const char* kResolvedSmall = "/small/";

std::string Sha256Of(const std::string& bytes) {
  Sha256 hash;
  hash.Add(std::as_bytes(std::span(bytes)));
  return hash.HexDigest();
}

// "/a/b" of "GET /a/b?c HTTP/1.1...".
std::string TargetOf(const std::string& request) {
  const size_t begin = request.find(' ') + 1;
  return request.substr(begin, request.find_first_of(" ?", begin) - begin);
}

CannedAnswer Head(int status, const std::string& headers, const std::string& body = "") {
  return {.pieces = {fmt::format("HTTP/1.1 {} X\r\n{}\r\n", status, headers), body}};
}

// The first byte that "Range: bytes=N-" asks for.
std::optional<size_t> RangeOf(const std::string& request) {
  constexpr std::string_view kRange = "Range: bytes=";
  const size_t at = request.find(kRange);
  if (at == std::string::npos) return std::nullopt;
  return std::strtoul(request.c_str() + at + kRange.size(), nullptr, 10);
}

}  // namespace

FakeHub::FakeHub()
    : large_files_([this](int, const std::string& request) { return AnswerLarge(request); }),
      hub_([this](int, const std::string& request) { return Answer(request); }) {
  ::setenv("no_proxy", "*", /*overwrite=*/1);  // a proxy of the environment knows nothing of it
}

void FakeHub::Put(const std::string& path, const std::string& bytes, bool is_large) {
  const std::string etag = is_large ? Sha256Of(bytes) : Sha256Of(bytes).substr(0, 40);
  files_[path] = {bytes, etag, is_large, static_cast<int64_t>(bytes.size())};
}

void FakeHub::Pretend(const std::string& path, const std::string& sha256, int64_t n_bytes) {
  files_[path].etag = sha256;
  files_[path].n_said = n_bytes;
}

HubOptions FakeHub::Options(const std::string& folder) const {
  return {.endpoint = Endpoint(),
          .cache_folder = folder,
          .connect_seconds = 5,
          .stall_seconds = 30,
          .retry_wait = std::chrono::milliseconds(1)};
}

std::string FakeHub::Endpoint() const { return fmt::format("http://127.0.0.1:{}", hub_.port()); }

std::vector<std::string> FakeHub::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::vector<std::string> FakeHub::requests_for_large_files() const {
  const std::lock_guard lock(mutex_);
  return large_requests_;
}

std::string FakeHub::Listing() const {
  if (!manners_.listing.empty()) return manners_.listing;
  nlohmann::json siblings = nlohmann::json::array();
  for (const auto& [path, file] : files_) {
    nlohmann::json sibling = {{"rfilename", path}, {"size", file.n_said}, {"blobId", "0a1b"}};
    if (file.is_large) sibling["lfs"] = {{"sha256", file.etag}, {"size", file.n_said}};
    siblings.push_back(std::move(sibling));
  }
  return nlohmann::json({{"id", "owner/model"}, {"sha", Commit()}, {"siblings", siblings}}).dump();
}

CannedAnswer FakeHub::Answer(const std::string& request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  if (manners_.refusal != 0) {
    return Head(manners_.refusal,
                fmt::format("X-Error-Code: {}\r\nContent-Length: 0\r\n", manners_.refusal_code));
  }
  const std::string target = TargetOf(request);
  const bool is_head = request.starts_with("HEAD");
  if (target == "/api/models/owner/model/revision/main") {
    return {.pieces = {WithLength(200, Listing())}};
  }
  const std::string resolve = kResolve + Commit() + "/";
  if (manners_.redirects_forever)
    return Head(302, "Location: " + target + "x\r\nContent-Length: 0\r\n");
  if (target.starts_with(resolve)) {
    return AnswerFile(target.substr(resolve.size()), is_head, /*is_resolved=*/false);
  }
  if (target.starts_with(kResolvedSmall)) {
    return AnswerFile(target.substr(std::string(kResolvedSmall).size()), is_head,
                      /*is_resolved=*/true);
  }
  return Head(404, "X-Error-Code: RepoNotFound\r\nContent-Length: 0\r\n");
}

CannedAnswer FakeHub::AnswerFile(const std::string& path, bool is_head, bool is_resolved) const {
  const auto found = files_.find(path);
  if (found == files_.end())
    return Head(404, "X-Error-Code: EntryNotFound\r\nContent-Length: 0\r\n");
  const File& file = found->second;
  if (file.is_large) {
    const std::string location =
        manners_.location.empty() ? fmt::format("http://127.0.0.1:{}/{}", large_files_.port(), path)
                                  : manners_.location;
    const std::string size =
        manners_.has_sizes ? fmt::format("X-Linked-Size: {}\r\n", file.n_said) : "";
    return Head(302,
                fmt::format("Location: {}\r\nX-Linked-Etag: \"{}\"\r\n{}X-Repo-Commit: {}\r\n"
                            "Content-Length: 9\r\n",
                            location, file.etag, size, Commit()),
                is_head ? "" : "Found it.");
  }
  if (!is_resolved) {
    return Head(307, fmt::format("Location: {}{}\r\nContent-Length: 0\r\n", kResolvedSmall, path));
  }
  return Head(200,
              fmt::format("ETag: W/\"{}\"\r\nContent-Length: {}\r\n", file.etag, file.bytes.size()),
              is_head ? "" : file.bytes);
}

CannedAnswer FakeHub::AnswerLarge(const std::string& request) {
  size_t number;
  {
    const std::lock_guard lock(mutex_);
    number = large_requests_.size();
    large_requests_.push_back(request);
  }
  if (static_cast<int>(number) < manners_.busy_answers) return Head(503, "Content-Length: 0\r\n");
  const auto found = files_.find(TargetOf(request).substr(1));
  if (found == files_.end()) return Head(404, "Content-Length: 0\r\n");
  const std::string& bytes = found->second.bytes;
  const std::optional<size_t> range = manners_.knows_ranges ? RangeOf(request) : std::nullopt;
  const size_t first = range.value_or(0);
  if (range.has_value() && first >= bytes.size()) return Head(416, "Content-Length: 0\r\n");
  std::string body = bytes.substr(first);
  const bool is_end = number < manners_.ends.size();
  if (is_end) body.resize(manners_.ends[number]);
  const std::string headers = fmt::format(
      "Content-Length: {}\r\n{}", body.size(),
      range.has_value()
          ? fmt::format("Content-Range: bytes {}-{}/{}\r\n", first, bytes.size() - 1, bytes.size())
          : "");
  const bool is_cut = number < manners_.cuts.size();
  if (is_cut) body.resize(std::min(body.size(), manners_.cuts[number]));
  CannedAnswer answer = Head(range.has_value() ? 206 : 200, headers, body);
  answer.closes = is_cut;
  answer.wait_ms = manners_.wait_ms;
  return answer;
}

}  // namespace kvlathe

// Asks a hub about one model and for its files. Redirects are followed; the token goes to the hub's
// own address alone. What the hub refuses becomes an error that says what to do.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "hub/http_transfer.h"
#include "hub/hub_listing.h"
#include "hub/hub_model.h"
#include "hub/hub_options.h"

namespace kvlathe {

// What a hub says of a file before it is fetched.
struct HubFileFacts {
  std::string etag;      // names the bytes in the cache; IsSafeWord
  int64_t n_bytes = -1;  // -1: not said
  std::string sha256;    // empty: not said
};

// Errors of all members:
//   kUnavailable       no network, no such host, no answer
//   kAborted           interrupted, or the hub is busy: asking again may help
//   kDeadlineExceeded  the hub has fallen silent
//   kNotFound          no such model or file, or it needs a token
//   kOutOfRange        a file has no byte at first_byte
//   kDataLoss          what comes is not what a hub says
class HubClient {
 public:
  HubClient(const HubOptions& options, const HubModel& model);

  StatusOr<HubListing> List();
  StatusOr<HubFileFacts> Ask(const std::string& commit, const std::string& path);
  // The bytes of a file from first_byte on, or all of them if the server does not know ranges:
  // `sink.begin` sees by the status (206 or 200) which.
  Status Download(const std::string& commit, const std::string& path, int64_t first_byte,
                  const BodySink& sink);

 private:
  std::string UrlOf(const std::string& commit, const std::string& path) const;
  // Follows redirects, with HEAD only those that stay at the hub. Answers below 400 alone.
  // `path`: the file that is asked for, or empty.
  StatusOr<HttpAnswer> Follow(HttpRequest request, const std::string& path, const BodySink& sink);
  // Of an answer of 400 or more.
  Status Refusal(const HttpAnswer& answer, const std::string& path) const;

  const HubOptions& options_;
  const HubModel& model_;
  HttpTransfer transfer_;
};

}  // namespace kvlathe

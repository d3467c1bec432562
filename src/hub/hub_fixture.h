// A hub for tests, on this machine: it lists files, answers HEAD and GET for them, and sends
// readers of large files to another server, as the real one does.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hub/hub_options.h"
#include "load_generation/canned_server.h"

namespace kvlathe {

// What it does otherwise than a hub should.
struct HubManners {
  int refusal = 0;           // status of every answer
  std::string refusal_code;  // X-Error-Code of it
  int busy_answers = 0;      // the first answers of the second server are 503
  bool knows_ranges = true;
  // The answer to the i-th GET of a large file ends behind so many bytes of its body, of which the
  // header says more.
  std::vector<size_t> cuts;
  std::vector<size_t> ends;  // the same, but the header says that this is all
  int wait_ms = 0;           // before a large file
  bool redirects_forever = false;
  std::string location;   // in place of the second server
  std::string listing;    // in place of the list of files
  bool has_sizes = true;  // X-Linked-Size is there
};

class FakeHub {
 public:
  FakeHub();

  // Of owner/model. A large file has a SHA-256 and lies on the second server.
  void Put(const std::string& path, const std::string& bytes, bool is_large = true);
  // What the hub says of a large file, instead of the truth.
  void Pretend(const std::string& path, const std::string& sha256, int64_t n_bytes);
  HubManners& manners() { return manners_; }  // set before the first request

  // Of this hub, with a cache below the folder and short waits.
  HubOptions Options(const std::string& folder) const;
  std::string Endpoint() const;
  static std::string Commit() { return std::string(40, 'c'); }

  // Requests with their headers, in the order in which they came.
  std::vector<std::string> requests() const;
  std::vector<std::string> requests_for_large_files() const;

 private:
  struct File {
    std::string bytes, etag;
    bool is_large;
    int64_t n_said;
  };

  CannedAnswer Answer(const std::string& request);
  CannedAnswer AnswerLarge(const std::string& request);
  CannedAnswer AnswerFile(const std::string& path, bool is_head, bool is_resolved) const;
  std::string Listing() const;

  std::map<std::string, File> files_;
  HubManners manners_;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_, large_requests_;  // under mutex_
  CannedServer large_files_, hub_;                      // the last, so that they end first
};

}  // namespace kvlathe

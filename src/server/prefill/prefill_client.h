// The prefill client of a decode replica has prefill replicas read prompts, over HTTP or HTTPS.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/prefixes/prompt_readers.h"

namespace kvlathe::server {

// How one attempt to have a prompt read elsewhere ended.
struct PromptAttempt {
  std::string request_id;
  std::string url;          // of the replica; empty: none is to be asked at the moment
  std::string_view reason;  // empty: it came; else of kAttemptReasons
  Status status;
  int64_t n_tokens = 0;
  int64_t n_bytes = 0;
  double seconds = 0;
};
// No connection; nothing came in time; an answer that is not 200; a stream that ended early or is
// not what was asked for; a whole one with which no request could go on; nobody to ask.
inline constexpr std::string_view kAttemptReasons[] = {"unreachable", "timeout", "refused",
                                                       "broken",      "unused",  "nobody"};

struct PrefillClientOptions {
  std::vector<std::string> urls;  // http://HOST:PORT
  std::string key;                // of all of them
  int least_tokens = 512;         // shorter prompts are read here
  // How long a replica may send nothing that counts: a part, or 64 KiB of a long one.
  double timeout_seconds = 10;
  // Called by any thread behind each attempt.
  std::function<void(const PromptAttempt&)> on_attempt;
};

// kInvalidArgument: not the address of a replica.
Status CheckPrefillUrl(const std::string& url);

// One thread serves all transfers. A prompt goes to the replica that reads the fewest for this
// process; where it does not come, to the next one. A replica that failed is left alone for
// kRestSeconds. At most kMostPrompts are under way; further ones are read here.
class PrefillClient : public PromptReaders {
 public:
  static constexpr double kRestSeconds = 5;
  static constexpr int kMostPrompts = 64;

  explicit PrefillClient(PrefillClientOptions options);
  ~PrefillClient() override;
  PrefillClient(const PrefillClient&) = delete;
  PrefillClient& operator=(const PrefillClient&) = delete;

  int least_tokens() const override { return options_.least_tokens; }
  std::unique_ptr<DistantPrompt> Ask(const Question& question) override;
  void WaitForChange(std::chrono::milliseconds at_most) override;

 private:
  class Transfers;  // what libcurl does, on the thread
  struct Asked;
  class Handle;
  struct Replica {
    std::string url;
    int n_under_way = 0;
    bool rests = false;
    Stopwatch since_failure;
  };

  // The place of the replica to ask, which is counted as busy; none where all rest or were tried.
  int TakeReplica(const std::vector<bool>& was_tried);
  void LeaveReplica(int place, bool has_failed);
  void End(const std::shared_ptr<Asked>& asked, bool was_read);
  void Run();

  const PrefillClientOptions options_;
  std::mutex mutex_;
  std::condition_variable has_changed_;
  std::vector<Replica> replicas_;
  std::vector<std::shared_ptr<Asked>> arrived_;
  int n_prompts_ = 0;  // under way
  bool stops_ = false;
  std::unique_ptr<Transfers> transfers_;
  std::thread thread_;
};

}  // namespace kvlathe::server

// Where a hub is, who asks it, and where what comes from it is kept. The environment says so in the
// words of Python's huggingface_hub, so that both programs share what either has fetched.
#pragma once

#include <chrono>
#include <string>

#include "base/status.h"

namespace kvlathe {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token;                                // sent to the endpoint alone; empty: none
  std::string cache_folder;                         // that models--OWNER--NAME lie in
  bool is_offline = false;                          // only what is in the cache

  // A server that says nothing for so long is given up.
  int connect_seconds = 10;
  int stall_seconds = 60;
  // Before what was interrupted is asked for again; twice as long each time that nothing came.
  std::chrono::milliseconds retry_wait{1000};
};

// HF_ENDPOINT; HF_TOKEN, or else the file that HF_TOKEN_PATH names ($HF_HOME/token); HF_HUB_CACHE,
// or else $HF_HOME/hub, where HF_HOME is $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface if it
// is not set; HF_HUB_OFFLINE. kInvalidArgument names the variable that cannot be right.
StatusOr<HubOptions> HubOptionsFromEnvironment();

}  // namespace kvlathe

// What a fetch tells whoever waits for it. Each function may be empty.
#pragma once

#include <functional>
#include <string>

namespace kvlathe {

struct HubNews {
  // What is being done, and the share of it that is done, in [0, 1].
  std::function<void(const std::string& what, double fraction)> progress;
  std::function<void(const std::string&)> on_note;   // what a person should know
  std::function<void(const std::string&)> on_begun;  // a fetch begins: what, how much, whereto
  std::function<void(const std::string&)> on_done;   // all of it is there
};

}  // namespace kvlathe

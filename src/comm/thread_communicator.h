// A group whose ranks are threads of one process: for tests of what runs on groups, under the
// sanitizers too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace kvlathe {

// One communicator for each of n_ranks threads. hosts: their names by rank; none are "thread-0",
// "thread-1", ... A rank that destroys all its communicators has left; who waits for it then is
// told at once. Sends are copied, and never wait.
std::vector<std::unique_ptr<Communicator>> MakeThreadGroup(int n_ranks,
                                                           std::vector<std::string> hosts = {});

}  // namespace kvlathe

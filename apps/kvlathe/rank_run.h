// A command that several ranks run together.
#pragma once

#include <string>

#include "base/status.h"
#include "kvlathe/options.h"

namespace kvlathe {

// Whether the command is one of a group: it says so, or mpirun has started several.
bool RunsOnRanks(const Verbs& verbs);

// Joins the group. Rank 0 runs the chosen verb, the others follow it. `command` is the command
// line. An error is reported and ends the group: the result is what the process exits with.
int RunOnRanks(const Verbs& verbs, const std::string& command);

// An error is one line on standard error: what, where, what to do. The result is what the process
// exits with.
int ReportError(const Status& status);

}  // namespace kvlathe

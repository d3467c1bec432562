// The roles of replicas that read prompts for each other (docs/prefill_decode.md).
#pragma once

#include <CLI/CLI.hpp>

#include "base/status.h"
#include "server/server.h"

namespace kvlathe {

// --role, --prefill, --prefill-key, --prefill-from, --prefill-timeout. `options` outlives the verb.
void AddRoleOptions(CLI::App* verb, server::ServerOptions* options);

// Whether the options of the role fit each other: kInvalidArgument.
Status CheckRole(const server::RoleOptions& role);
// Whether the caches of every level can travel, where the role needs it: kInvalidArgument, with the
// level and why not.
Status CheckLevelsTravel(const server::RoleOptions& role, const server::ServedModel& served);

}  // namespace kvlathe

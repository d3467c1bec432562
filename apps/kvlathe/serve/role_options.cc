#include "kvlathe/serve/role_options.h"

#include <map>
#include <string>

#include "server/api_keys.h"
#include "server/prefill/prefill_client.h"
#include "server/prefill/prefill_route.h"

namespace kvlathe {
namespace {

using server::Role;

const std::map<std::string, Role> kRoles = {
    {"all", Role::kAll}, {"prefill", Role::kPrefill}, {"decode", Role::kDecode}};

}  // namespace

void AddRoleOptions(CLI::App* verb, server::ServerOptions* options) {
  server::RoleOptions* role = &options->role;
  verb->add_option_function<std::string>(
          "--role",
          [options](const std::string& name) {
            options->role.role = kRoles.at(name);
            if (options->role.role != Role::kPrefill) return;
            options->http.max_buffered_bytes = server::PrefillRoute::kMaxBufferedBytes;
          },
          "prefill: read prompts for replicas of role decode, and answer nothing; decode: have "
          "long prompts read by --prefill (default: all, both by itself)")
      ->check(CLI::IsMember({"all", "prefill", "decode"}));
  verb->add_option("--prefill", role->prefill_urls,
                   "with --role decode: the address of a prefill replica, e.g. http://host:8080; "
                   "repeats");
  verb->add_option("--prefill-key", role->key,
                   "key that the replicas of both roles share; needed by both")
      ->envname("KVLATHE_PREFILL_KEY");
  verb->add_option("--prefill-from", role->least_tokens,
                   "with --role decode: prompts of which fewer tokens are missing are read here")
      ->check(CLI::Range(64, 1 << 30))
      ->capture_default_str();
  verb->add_option("--prefill-timeout", role->timeout_seconds,
                   "with --role decode: seconds that a prefill replica may send nothing new before "
                   "the prompt is read elsewhere")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

Status CheckRole(const server::RoleOptions& role) {
  if (role.role != Role::kDecode && !role.prefill_urls.empty()) {
    return Error(StatusCode::kInvalidArgument, "--prefill goes with --role decode");
  }
  if (role.role == Role::kAll) return OkStatus();
  if (role.key.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--role needs the key that both roles share; set KVLATHE_PREFILL_KEY or give "
                 "--prefill-key KEY");
  }
  KVL_RETURN_IF_ERROR(server::ParseApiKeys(role.key, "--prefill-key").status());
  if (role.role == Role::kPrefill) return OkStatus();
  if (role.prefill_urls.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--role decode needs the address of a prefill replica: --prefill "
                 "http://HOST:PORT");
  }
  for (const std::string& url : role.prefill_urls) {
    KVL_RETURN_IF_ERROR(server::CheckPrefillUrl(url));
  }
  return OkStatus();
}

Status CheckLevelsTravel(const server::RoleOptions& role, const server::ServedModel& served) {
  if (role.role == Role::kAll) return OkStatus();
  for (size_t l = 0; l < served.levels.size(); ++l) {
    const std::string_view why = WhyNothingIsShared(served.levels[l]->layout());
    if (why.empty()) continue;
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}' cannot be read on one machine and answered on another: {}; choose "
                 "another --kv, or leave out --role",
                 served.api.levels[l].name, why);
  }
  return OkStatus();
}

}  // namespace kvlathe

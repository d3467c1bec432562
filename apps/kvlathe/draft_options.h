// Several verbs that generate take --draft (engine/drafts).
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/drafts/drafter.h"
#include "runtime/spec_models.h"

namespace kvlathe {

// --draft, checked when it is parsed. `text` outlives the verb and is "none" without it.
void AddDraftOption(CLI::App* verb, std::string* text);

// What the checked text says.
std::optional<DraftOptions> ParseDraft(const std::string& text);

// kInvalidArgument, with the name of the cache and why, where there are to be drafts and it has
// none.
Status CheckDraft(const std::optional<DraftOptions>& draft, const SpecModel& spec_model);

}  // namespace kvlathe

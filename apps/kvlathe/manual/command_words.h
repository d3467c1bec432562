// The command's verbs and options, as CLI11 has them, for completions and the manual.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvlathe {

// As it is typed: "kvlathe", "kvlathe run", "kvlathe bench model".
std::string CommandOf(const CLI::App& verb);

std::vector<const CLI::App*> VerbsOf(const CLI::App& app);
const CLI::App* FindVerb(const CLI::App& app, const std::string& name);

// The words of which a value is one; empty if it is anything else.
std::vector<std::string> ChoicesOf(const CLI::Option& option);

// What a value is, for whoever types it: TEXT, INT, FLOAT, a name; empty for a flag.
std::string KindOf(const CLI::Option& option);

// "-m" and "--model", as they are typed; empty for what stands without a name.
std::vector<std::string> NamesOf(const CLI::Option& option);

}  // namespace kvlathe

// Manual pages, made of what the command says of its verbs and options: kvlathe(1), and a page for
// each verb, kvlathe-run(1), kvlathe-bench-model(1).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvlathe {

// The name of a verb's page without its section: "kvlathe-bench-model".
std::string PageNameOf(const CLI::App& verb);

// The page of a verb, or of the whole command, in the macros of man(7).
std::string ManualPage(const CLI::App& verb);

}  // namespace kvlathe

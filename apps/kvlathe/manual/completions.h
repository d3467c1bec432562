// What shells offer while a command line is typed: `kvlathe completions bash` prints a script for a
// shell, and the script asks `kvlathe completions -- WORD...` at every Tab, so that what is offered
// is what this program has.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvlathe {

// What may stand where the last of `words` is typed; `words` are those behind the name of the
// program, the last one may be empty. A line for each, "TEXT\tWHAT IT IS". Behind text that ends
// with "=" or "," no space belongs. A line ":files" or ":models" stands for what the shell itself
// offers: paths, or directories and .gguf files.
std::string CompletionLines(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace kvlathe

// The verbs of `kvlathe retrofit` belong to two programs that share their command line:
// kvlathe-retrofit has those that read text, and kvlathe-trainer those that need libtorch.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/status.h"

namespace kvlathe {

struct RetrofitVerbs {
  CLI::App* app;
  std::function<Status()> chosen;  // set when the command line is parsed

  CLI::App* Add(const std::string& name, const std::string& summary, const std::string& example,
                std::function<Status()> run);
};

// Runs the verb that the command line names, of those that `add` registers, and returns the exit
// status: 0, 1 for a failure while running, 2 for a request that cannot be right. An error is one
// line on standard error.
int RunVerbs(int argc, char** argv, const std::function<void(RetrofitVerbs*)>& add);

void AddGqaVerb(RetrofitVerbs* verbs);
void AddPretrainVerb(RetrofitVerbs* verbs);
void AddDmcVerb(RetrofitVerbs* verbs);
void AddDmsVerb(RetrofitVerbs* verbs);
// Takes token ids on standard input: kvlathe-retrofit makes them.
void AddFisherVerb(RetrofitVerbs* verbs);

}  // namespace kvlathe

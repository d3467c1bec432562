// The verbs of `kvlathe retrofit` that need libtorch: a program of their own, which `kvlathe` runs.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/status.h"

namespace kvlathe {

struct RetrofitVerbs {
  CLI::App* app;
  std::function<Status()> chosen;

  CLI::App* Add(const std::string& name, const std::string& summary, const std::string& example,
                std::function<Status()> run);
};

void AddGqaVerb(RetrofitVerbs* verbs);
void AddPretrainVerb(RetrofitVerbs* verbs);
void AddDmcVerb(RetrofitVerbs* verbs);
void AddFisherVerb(RetrofitVerbs* verbs);

}  // namespace kvlathe

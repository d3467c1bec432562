// Several verbs take tasks on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include "runtime/measuring/task_choice.h"

namespace kvlathe {

// Adds --task and what decides its examples.
void AddTaskChoiceOptions(CLI::App* verb, TaskChoiceOptions* options);

}  // namespace kvlathe

// Searches the caches of a workspace's model for the smallest that keep an accuracy, and keeps what
// it measures in a profile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/measuring/task_choice.h"
#include "runtime/workspace.h"
#include "tuning/tune.h"

namespace kvlathe {

// A profile and where it is kept.
struct Tuning {
  Profile profile;
  std::string path;
};

struct TuningOptions {
  std::vector<std::string> methods;  // TuneJob::methods
  TaskChoiceOptions task;
  std::string perplexity_text;  // a path; empty: none, or without tasks the model's sample.txt
  double accuracy = 0.99;
  std::string output;  // to write, or to go on with; empty: where specs find it (KeptProfilePath)
  // Each may be null. on_begun gets what was measured before.
  std::function<void(const Tuning&)> on_begun;
  std::function<void(const std::string& method)> on_method;
  std::function<void(const Profile&)> on_points;  // has new ones
};

// `chosen` is what ChooseTasks made of options.task. Every measured point is in the file as soon as
// it is known. kInvalidArgument for a method that does not parse and for a file that was measured
// differently; the errors of what it measures, after which the file holds what came before.
StatusOr<Tuning> RunTuning(Workspace* workspace, std::vector<ChosenTask> chosen,
                           TuningOptions options);

}  // namespace kvlathe

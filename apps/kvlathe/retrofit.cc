// The verb `retrofit` runs kvlathe-retrofit, the program of lab/trainer, which stands beside this
// one where the lab is built. So neither training nor libtorch is a part of the engine.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "io/files.h"
#include "kvlathe/options.h"

namespace kvlathe {
namespace {

// Replaces this process.
Status RunRetrofit(const std::vector<std::string>& arguments) {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::string program = (self.parent_path() / "kvlathe-retrofit").string();
  if (!FileExists(program)) {
    return Error(StatusCode::kNotFound,
                 "{}: not there, because this build is without the lab; configure with "
                 "-DKVLATHE_LAB=ON and build again (docs/training.md)",
                 program);
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return Error(StatusCode::kInternal, "{}: cannot be run: {}", program, std::strerror(errno));
}

}  // namespace

void AddRetrofitVerb(Verbs* verbs) {
  CLI::App* verb = verbs->app->add_subcommand(
      "retrofit", "Training, in a build with the lab: a model from text, and models that merge");
  // The other program knows the rest of the line, --help too.
  verb->prefix_command();
  verb->set_help_flag();
  verb->callback([verbs, verb] {
    verbs->chosen = [arguments = verb->remaining()] { return RunRetrofit(arguments); };
  });
}

}  // namespace kvlathe

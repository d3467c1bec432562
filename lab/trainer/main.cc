#include <fmt/format.h>
#include <malloc.h>

#include <exception>

#include "verbs.h"

namespace kvlathe {

CLI::App* RetrofitVerbs::Add(const std::string& name, const std::string& summary,
                             const std::string& example, std::function<Status()> run) {
  CLI::App* verb = app->add_subcommand(name, summary);
  verb->footer("Example: " + example);
  verb->callback([this, run = std::move(run)] { chosen = run; });
  return verb;
}

namespace {

// An error is one line on stderr: what, where, what to do.
int ReportError(const Status& status) {
  std::string message = MessageOf(status);
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  fmt::print(stderr, "kvlathe: {}\n", message);
  return status.code() == StatusCode::kInvalidArgument ? 2 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app{"Training of models for the engine", "kvlathe retrofit"};
  app.require_subcommand(1);
  RetrofitVerbs verbs{&app, nullptr};
  AddPretrainVerb(&verbs);
  AddDmcVerb(&verbs);
  AddGqaVerb(&verbs);
  AddFisherVerb(&verbs);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return ReportError(
        Error(StatusCode::kInvalidArgument, "{}; see kvlathe retrofit --help", error.what()));
  }
  const Status status = verbs.chosen();
  return status.ok() ? 0 : ReportError(status);
}

}  // namespace
}  // namespace kvlathe

int main(int argc, char** argv) {
  // Activations of tens of megabytes come and go in every step. Giving them back to the system each
  // time costs a fifth of the run in page faults.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 256 << 20);
  try {
    return kvlathe::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kvlathe: out of memory; use smaller micro batches or a smaller model\n");
  } catch (const std::exception& error) {
    std::string message = error.what();
    fmt::print(stderr, "kvlathe: internal error: {}\n", message.substr(0, message.find('\n')));
  }
  return 1;
}

#include "verbs.h"

#include <fmt/format.h>

#include <exception>

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

int ParseAndRun(int argc, char** argv, const std::function<void(RetrofitVerbs*)>& add) {
  CLI::App app{"Training of models for the engine", "kvlathe retrofit"};
  app.require_subcommand(1);
  RetrofitVerbs verbs{&app, nullptr};
  add(&verbs);
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

int RunVerbs(int argc, char** argv, const std::function<void(RetrofitVerbs*)>& add) {
  try {
    return ParseAndRun(argc, argv, add);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kvlathe: out of memory; use smaller micro batches or a smaller model\n");
  } catch (const std::exception& error) {
    const std::string message = error.what();
    fmt::print(stderr, "kvlathe: internal error: {}\n", message.substr(0, message.find('\n')));
  }
  return 1;
}

}  // namespace kvlathe

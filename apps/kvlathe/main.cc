#include <fmt/format.h>

#include <algorithm>

#include "options.h"

namespace kvlathe {
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
  CLI::App app{"LLM inference on a compressed KV cache", "kvlathe"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvlathe " KVLATHE_VERSION);
  app.footer("Example: kvlathe compare -m models/lathe-nano --kv none --kv 'fdc(rate=0.5)'");
  Verbs verbs{&app, nullptr};
  AddRunVerb(&verbs);
  AddChatVerb(&verbs);
  AddCompareVerb(&verbs);
  AddCalibrateVerb(&verbs);
  AddTuneVerb(&verbs);
  AddReportVerb(&verbs);
  AddEvalVerb(&verbs);
  AddInspectVerb(&verbs);
  AddSpecsVerb(&verbs);
  AddTokenizeVerb(&verbs);
  AddBenchVerb(&verbs);
  AddRetrofitVerb(&verbs);
  // llama.cpp's two-letter short option, which CLI11 would read as -n p.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::replace(arguments.begin(), arguments.end(), std::string("-np"), std::string("--parallel"));
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 takes
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return ReportError(Error(StatusCode::kInvalidArgument, "{}; see kvlathe --help", error.what()));
  }
  const Status status = verbs.chosen();
  if (!status.ok()) return ReportError(status);
  if (std::fflush(stdout) != 0) {
    return ReportError(Error(StatusCode::kResourceExhausted, "standard output cannot be written"));
  }
  return 0;
}

}  // namespace
}  // namespace kvlathe

int main(int argc, char** argv) {
  try {
    return kvlathe::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kvlathe: out of memory; use a smaller model, context or --kv-memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvlathe: internal error: {}\n", error.what());
  }
  return 1;
}

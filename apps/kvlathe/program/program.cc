#include "kvlathe/program/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <csignal>

#include "base/near_words.h"
#include "kvlathe/manual/command_words.h"
#include "kvlathe/manual/completions.h"
#include "kvlathe/options.h"
#include "kvlathe/rank_run.h"
#include "kvlathe/suggestions.h"

namespace kvlathe {
namespace {

std::vector<std::string> VerbNamesOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : VerbsOf(app)) names.push_back(verb->get_name());
  return names;
}

// "-m" and "--model" of every option.
std::vector<std::string> OptionsOf(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (std::string& name : NamesOf(*option)) names.push_back(std::move(name));
  }
  return names;
}

// The name of an argument that looks like an option: what stands before "=".
std::string OptionName(const std::string& argument) {
  const bool is_number = argument.size() > 1 && (std::isdigit(argument[1]) || argument[1] == '.');
  if (argument.size() < 2 || argument[0] != '-' || is_number) return {};
  return argument.substr(0, argument.find('='));
}

// What is not understood of a command line, by its first wrong word, with what it may have meant;
// OK if no word is known to be wrong. Sets `chosen` to the innermost verb that is named.
Status CheckWords(const CLI::App& app, const std::vector<std::string>& arguments,
                  const CLI::App** chosen) {
  *chosen = &app;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const CLI::App* const verb = *chosen;
    // The verb comes first; bench and retrofit have verbs of their own.
    if (const CLI::App* inner = FindVerb(*verb, arguments[i])) {
      *chosen = inner;
      if (inner->get_prefix_command()) return OkStatus();  // another program checks its words
      continue;
    }
    const std::vector<std::string> verbs = VerbNamesOf(*verb);
    if (!verbs.empty() && !arguments[i].starts_with('-')) {
      const auto nearest = NearestOf(arguments[i], verbs);
      return Error(StatusCode::kInvalidArgument, "unknown verb '{}'{}; {} --help lists them",
                   arguments[i], nearest ? fmt::format("; did you mean {}?", *nearest) : "",
                   CommandOf(*verb));
    }
    const std::string name = OptionName(arguments[i]);
    if (name.empty()) continue;
    if (const CLI::Option* option = verb->get_option_no_throw(name)) {
      // What follows is its value, even if it looks like an option, as the text behind -p may.
      if (name == arguments[i] && option->get_items_expected_min() > 0) ++i;
      continue;
    }
    if (const auto meaning = NameHere(name)) {
      return Error(StatusCode::kInvalidArgument, "{} {}", name, *meaning);
    }
    const auto nearest = name.starts_with("--") ? NearestOf(name, OptionsOf(*verb)) : std::nullopt;
    if (!verbs.empty() && !nearest.has_value()) {
      return Error(StatusCode::kInvalidArgument,
                   "{} comes behind a verb, as in {} {} {}; {} --help lists the verbs", name,
                   CommandOf(*verb), verbs.front(), name, CommandOf(*verb));
    }
    if (!name.starts_with("--") || name == "--") continue;  // may be -p with its value
    return Error(StatusCode::kInvalidArgument, "unknown option {}{}; see {} --help", name,
                 nearest ? fmt::format("; did you mean {}?", *nearest) : "", CommandOf(*verb));
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app{"LLM inference on a compressed KV cache", "kvlathe"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvlathe " KVLATHE_VERSION);
  app.footer("Example: kvlathe compare -m models/lathe-nano --kv none --kv 'lathe(ratio=4)'");
  Verbs verbs{&app, nullptr, nullptr};
  AddRunVerb(&verbs);
  AddChatVerb(&verbs);
  AddServeVerb(&verbs);
  AddAuditVerb(&verbs);
  AddCompareVerb(&verbs);
  AddCalibrateVerb(&verbs);
  AddTuneVerb(&verbs);
  AddReportVerb(&verbs);
  AddChartVerb(&verbs);
  AddEvalVerb(&verbs);
  AddInspectVerb(&verbs);
  AddSpecsVerb(&verbs);
  AddPrefixVerb(&verbs);
  AddTokenizeVerb(&verbs);
  AddConvertVerb(&verbs);
  AddBenchVerb(&verbs);
  AddRetrofitVerb(&verbs);
  AddCompletionsVerb(&verbs);
  AddManualVerb(&verbs);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 2 && arguments[0] == "completions" && arguments[1] == "--") {
    fmt::print("{}", CompletionLines(app, {arguments.begin() + 2, arguments.end()}));
    return 0;
  }
  // llama.cpp's two-letter short option, which CLI11 would read as -n p. Behind -p it is a text.
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_text = i > 0 && (arguments[i - 1] == "-p" || arguments[i - 1] == "--prompt");
    if (arguments[i] == "-np" && !is_text) arguments[i] = "--parallel";
  }
  const CLI::App* verb = &app;
  if (const Status status = CheckWords(app, arguments, &verb); !status.ok()) {
    return ReportError(status);
  }
  const std::string command = fmt::format("{}", fmt::join(arguments, " "));
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 takes
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return ReportError(
        Error(StatusCode::kInvalidArgument, "{}; see {} --help", error.what(), CommandOf(*verb)));
  }
  if (RunsOnRanks(verbs)) return RunOnRanks(verbs, command);
  const Status status = verbs.chosen();
  if (!status.ok()) return ReportError(status);
  if (std::fflush(stdout) != 0) {
    return ReportError(Error(StatusCode::kResourceExhausted, "standard output cannot be written"));
  }
  return 0;
}

}  // namespace

int RunProgram(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write that fails
  try {
    return Main(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kvlathe: out of memory; use a smaller model, context or --kv-memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvlathe: internal error: {}\n", error.what());
  }
  return 1;
}

}  // namespace kvlathe

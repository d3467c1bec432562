#include "kvlathe/manual/manual.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>

#include "io/files.h"
#include "kv/spec/spec_table.h"
#include "kvlathe/manual/command_words.h"
#include "kvlathe/manual/manual_text.h"
#include "kvlathe/options.h"

namespace kvlathe {
namespace {

// Text as it is shown: no character of it means anything to man(7).
std::string Roff(std::string_view text) {
  std::string roff;
  for (const char c : text) {
    if (c == '\\') {
      roff += "\\e";
    } else if (c == '-') {
      roff += "\\-";  // a minus, which can be copied, and no hyphen
    } else if (c == '\n') {
      roff += "\n.br\n";
    } else {
      roff += c;
    }
  }
  const bool is_macro = roff.starts_with('.') || roff.starts_with('\'');
  return is_macro ? "\\&" + roff : roff;
}

// "\fB\-m\fR, \fB\-\-model\fR \fITEXT\fR": how an option is typed.
std::string TypedOption(const CLI::Option& option) {
  std::string typed;
  for (const std::string& name : NamesOf(option)) {
    typed += fmt::format("{}\\fB{}\\fR", typed.empty() ? "" : ", ", Roff(name));
  }
  const std::string kind = KindOf(option);
  if (typed.empty()) return fmt::format("\\fI{}\\fR", Roff(option.get_name(true)));
  return kind.empty() ? typed : fmt::format("{} \\fI{}\\fR", typed, Roff(kind));
}

// An option, what it is, and which values it takes.
std::string OptionParagraph(const CLI::Option& option) {
  std::string text = option.get_description();
  const std::vector<std::string> choices = ChoicesOf(option);
  if (!choices.empty()) {
    text += "; one of ";
    for (const std::string& choice : choices) {
      text += (choice == choices.front() ? "" : ", ") + choice;
    }
  } else if (const std::string type = option.get_type_name();
             type.find(" in [") != std::string::npos) {
    text += "; " + type.substr(type.find(" in [") + 1);  // a range
  }
  if (!option.get_default_str().empty()) text += "; by default " + option.get_default_str();
  if (!option.get_envname().empty()) text += "; else " + option.get_envname() + " says it";
  if (option.get_required()) text += "; must be given";
  return fmt::format(".TP\n{}\n{}\n", TypedOption(option), Roff(text));
}

std::string Section(std::string_view title, const std::string& contents) {
  return contents.empty() ? std::string() : fmt::format(".SH {}\n{}", title, contents);
}

// Every verb below this one, with its page.
std::string VerbParagraphs(const CLI::App& verb) {
  std::string text;
  for (const CLI::App* inner : VerbsOf(verb)) {
    text += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", Roff(PageNameOf(*inner)),
                        Roff(inner->get_description()));
    text += VerbParagraphs(*inner);
  }
  return text;
}

// What verbs that open a model have in common, as `run` says it.
std::string CommonOptions(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : FindVerb(command, "run")->get_options()) {
    bool is_common = option->get_single_name() != "help";
    for (const char* name : {"serve", "chat", "compare", "eval"}) {
      const std::string typed = "--" + option->get_single_name();
      is_common &= FindVerb(command, name)->get_option_no_throw(typed) != nullptr;
    }
    if (is_common) text += OptionParagraph(*option);
  }
  return text;
}

std::string Methods() {
  std::string text =
      "At most one method of each axis, joined by +; their keys are in the output of\n"
      ".BR \"kvlathe specs\" .\n";
  for (const StageInfo& stage : AllStages()) {
    text += fmt::format(".TP\n\\fB{}\\fR\n{}: {}\n", Roff(stage.name), AxisName(stage.axis),
                        Roff(stage.doc));
  }
  return text;
}

std::string OwnOptions(const CLI::App& verb, bool is_positional) {
  std::string text;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_positional() == is_positional) text += OptionParagraph(*option);
  }
  return text;
}

std::string Synopsis(const CLI::App& verb) {
  std::string line = fmt::format("\\fB{}\\fR", Roff(CommandOf(verb)));
  if (!VerbsOf(verb).empty()) line += " \\fIVERB\\fR";
  line += " [\\fIOPTION\\fR]...";
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = fmt::format("\\fI{}\\fR", Roff(option->get_name(true)));
    const std::string several = option->get_items_expected_max() > 1 ? "..." : "";
    line += option->get_required() ? fmt::format(" {}{}", name, several)
                                   : fmt::format(" [{}]{}", name, several);
  }
  return line + "\n";
}

// What stands at the end of the help: prose, and an example behind "Example: ".
std::string NotesAndExample(const CLI::App& verb) {
  std::string notes = verb.get_footer();
  constexpr std::string_view kMark = "Example: ";
  const size_t mark = notes.find(kMark);
  std::string example;
  if (mark != std::string::npos) {
    example = fmt::format(".nf\n{}\n.fi\n", Roff(notes.substr(mark + kMark.size())));
    notes.erase(mark);
  }
  while (notes.ends_with('\n')) notes.pop_back();
  if (!notes.empty()) notes = Roff(notes) + "\n";
  return Section("NOTES", notes) + Section("EXAMPLE", example);
}

// The pages above a verb's.
std::string SeeAlso(const CLI::App& verb) {
  std::string text;
  for (const CLI::App* above = verb.get_parent(); above != nullptr; above = above->get_parent()) {
    text += fmt::format("{}\\fB{}\\fR(1)", text.empty() ? "" : ", ", Roff(PageNameOf(*above)));
  }
  return text.empty() ? text : text + "\n";
}

Status WritePages(const CLI::App& verb, const std::string& folder) {
  const std::string path = fmt::format("{}/{}.1", folder, PageNameOf(verb));
  KVL_RETURN_IF_ERROR(WriteFileAtomically(path, ManualPage(verb)));
  for (const CLI::App* inner : VerbsOf(verb)) KVL_RETURN_IF_ERROR(WritePages(*inner, folder));
  return OkStatus();
}

}  // namespace

std::string PageNameOf(const CLI::App& verb) {
  std::string name = CommandOf(verb);
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string ManualPage(const CLI::App& verb) {
  const bool is_command = verb.get_parent() == nullptr;
  const std::string name = PageNameOf(verb);
  std::string title = name;
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string page = fmt::format(".TH \"{}\" 1 \"\" \"kvlathe {}\" \"User Commands\"\n",
                                 Roff(title), KVLATHE_VERSION);
  page += Section("NAME", fmt::format("{} \\- {}\n", Roff(name), Roff(verb.get_description())));
  page += Section("SYNOPSIS", Synopsis(verb));
  if (is_command) page += kManualDescription;
  page += Section("VERBS", VerbParagraphs(verb));
  page += Section("ARGUMENTS", OwnOptions(verb, true));
  page += Section("OPTIONS", OwnOptions(verb, false));
  if (is_command) {
    page += Section("COMMON OPTIONS", CommonOptions(verb));
    page += Section("METHODS", Methods());
    page += kManualEnding;
    return page;
  }
  if (verb.get_prefix_command()) {
    page += Section("DESCRIPTION", fmt::format("Its words are those of another program; "
                                               "\\fB{} \\-\\-help\\fR lists them.\n",
                                               Roff(CommandOf(verb))));
  }
  page += NotesAndExample(verb);
  page += Section("SEE ALSO", SeeAlso(verb));
  return page;
}

void AddManualVerb(Verbs* verbs) {
  auto folder = std::make_shared<std::string>();
  const CLI::App* command = verbs->app;
  CLI::App* verb = verbs->Add(
      "manual", "The manual pages of the command and of its verbs, as files", "kvlathe manual man1",
      [folder, command]() -> Status {
        std::error_code failed;
        std::filesystem::create_directories(*folder, failed);
        if (failed) {
          return Error(StatusCode::kNotFound, "{}: not a folder, and none can be made there: {}",
                       *folder, failed.message());
        }
        return WritePages(*command, *folder);
      });
  verb->add_option("FOLDER", *folder, "where the pages go: kvlathe.1, kvlathe-run.1 and so on")
      ->required();
}

}  // namespace kvlathe

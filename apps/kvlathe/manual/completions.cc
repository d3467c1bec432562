#include "kvlathe/manual/completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "kvlathe/manual/command_words.h"
#include "kvlathe/manual/completion_scripts.h"
#include "kvlathe/manual/spec_candidates.h"
#include "kvlathe/options.h"
#include "runtime/named_model.h"

namespace kvlathe {
namespace {

// What the words before the last one say.
struct TypedWords {
  const CLI::App* verb = nullptr;
  const CLI::Option* awaited = nullptr;   // whose value the last word is
  const CLI::Option* repeated = nullptr;  // that may have the last word as one more value
  std::set<const CLI::Option*> given;
  size_t n_positionals = 0;
};

TypedWords ReadWords(const CLI::App& app, const std::vector<std::string>& words) {
  TypedWords typed{.verb = &app};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (typed.verb->get_prefix_command()) return typed;
    if (typed.awaited != nullptr) {
      typed.repeated = typed.awaited->get_items_expected_max() > 1 ? typed.awaited : nullptr;
      typed.awaited = nullptr;
      continue;
    }
    if (const CLI::App* inner = FindVerb(*typed.verb, words[i])) {
      typed.verb = inner;
      continue;
    }
    if (!words[i].starts_with('-')) {
      if (typed.repeated == nullptr) ++typed.n_positionals;
      continue;
    }
    typed.repeated = nullptr;
    const size_t equals = words[i].find('=');
    const CLI::Option* option = typed.verb->get_option_no_throw(words[i].substr(0, equals));
    if (option == nullptr) continue;
    typed.given.insert(option);
    if (equals == std::string::npos && option->get_items_expected_min() > 0) {
      typed.awaited = option;
    }
  }
  return typed;
}

// One line of the answer; `doc` loses what would end the line.
void AddLine(std::string_view text, std::string_view doc, std::string* lines) {
  std::string flat(doc);
  std::ranges::replace_if(
      flat, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  *lines += fmt::format("{}\t{}\n", text, flat);
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::count(names, name) > 0;
}

// Values of an option, or of what stands without a name, that begin with `begun`, behind `before`.
void AddValues(const CLI::Option& option, const std::string& before, const std::string& begun,
               std::string* lines) {
  const auto add = [&](std::string_view value, std::string_view doc) {
    if (value.starts_with(begun)) AddLine(before + std::string(value), doc, lines);
  };
  const std::string& name = option.get_single_name();
  if (const std::vector<std::string> words = ChoicesOf(option); !words.empty()) {
    for (const std::string& word : words) add(word, option.get_description());
  } else if (name == "kv") {
    for (const Candidate& candidate : SpecCandidates(begun)) add(candidate.text, candidate.doc);
  } else if (name == "device") {
    add("cpu", "processors");
    add("cuda", "a GPU");
  } else if (IsOneOf(name, {"model", "tokenizer", "reference", "along", "IN"})) {
    for (const std::string_view model : FetchedModelNames()) {
      add(model, "what scripts/fetch_model.sh fetches");
    }
    *lines += ":models\n";
  } else if (KindOf(option) == "TEXT") {
    *lines += ":files\n";
  }
}

void AddOptions(const TypedWords& typed, const std::string& begun, std::string* lines) {
  for (const CLI::Option* option : typed.verb->get_options()) {
    if (typed.given.contains(option) && option->get_items_expected_max() <= 1) continue;
    const std::vector<std::string> names = NamesOf(*option);
    for (const std::string& name : names) {
      // A letter where nothing else is there, or where it is what was typed.
      const bool is_shown = name.starts_with("--") || names.size() == 1 || name == begun;
      if (is_shown && name.starts_with(begun)) AddLine(name, option->get_description(), lines);
    }
  }
}

// What stands without a name at this place: the last one that takes several goes on.
const CLI::Option* PositionalAt(const CLI::App& verb, size_t place) {
  const CLI::Option* last = nullptr;
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    if (place == 0) return option;
    --place;
    last = option->get_items_expected_max() > 1 ? option : nullptr;
  }
  return last;
}

}  // namespace

std::string CompletionLines(const CLI::App& app, const std::vector<std::string>& words) {
  std::string lines;
  const TypedWords typed = ReadWords(app, words);
  const std::string word = words.empty() ? std::string() : words.back();
  if (typed.verb->get_prefix_command()) return ":files\n";
  if (typed.awaited != nullptr) {
    AddValues(*typed.awaited, {}, word, &lines);
    return lines;
  }
  if (const size_t equals = word.find('='); word.starts_with('-') && equals != std::string::npos) {
    const CLI::Option* option = typed.verb->get_option_no_throw(word.substr(0, equals));
    if (option != nullptr && option->get_items_expected_max() > 0) {
      AddValues(*option, word.substr(0, equals + 1), word.substr(equals + 1), &lines);
    }
    return lines;
  }
  if (word.starts_with('-')) {
    AddOptions(typed, word, &lines);
    return lines;
  }
  for (const CLI::App* verb : VerbsOf(*typed.verb)) {
    if (verb->get_name().starts_with(word)) {
      AddLine(verb->get_name(), verb->get_description(), &lines);
    }
  }
  if (typed.repeated != nullptr) AddValues(*typed.repeated, {}, word, &lines);
  if (const CLI::Option* option = PositionalAt(*typed.verb, typed.n_positionals)) {
    AddValues(*option, {}, word, &lines);
  }
  if (lines.empty() && word.empty()) AddOptions(typed, "-", &lines);
  return lines;
}

void AddCompletionsVerb(Verbs* verbs) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = verbs->Add("completions", "A script by which a shell completes what is typed",
                              "source <(kvlathe completions bash)", [shell] {
                                fmt::print("{}", CompletionScript(*shell));
                                return OkStatus();
                              });
  verb->add_option("SHELL", *shell, "the shell that reads the script")
      ->required()
      ->check(CLI::IsMember(CompletedShells()));
}

}  // namespace kvlathe

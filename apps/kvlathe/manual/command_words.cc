#include "kvlathe/manual/command_words.h"

namespace kvlathe {

std::string CommandOf(const CLI::App& verb) {
  const CLI::App* const parent = verb.get_parent();
  return parent == nullptr ? verb.get_name() : CommandOf(*parent) + " " + verb.get_name();
}

std::vector<const CLI::App*> VerbsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* FindVerb(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : VerbsOf(app)) {
    if (verb->get_name() == name) return verb;
  }
  return nullptr;
}

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  // CLI11 keeps the words of IsMember only in the text that it shows: "TEXT:{bf16,f32}".
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  const size_t close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

std::string KindOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace kvlathe

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/prose.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

struct Animal {
  std::string_view name, colour, place;

  std::string Fact() const {
    return fmt::format("the {} is {} and lives in the {} . ", name, colour, place);
  }
};

struct Rules {
  int first = 0, n_lines = 0;
  std::vector<Animal> cycle;

  // Without the number of lines: a longer answer extends a shorter one.
  std::string Content() const {
    std::string content = std::to_string(first);
    for (const Animal& animal : cycle) content += animal.Fact();
    return content;
  }

  std::string Order() const {
    std::string order;
    for (const Animal& animal : cycle) (order += order.empty() ? "" : " , ") += animal.name;
    return order;
  }

  std::string Answer() const {
    std::string answer;
    for (int i = 0; i < n_lines; ++i) {
      const Animal& animal = cycle[i % cycle.size()];
      answer += fmt::format("{}{} , {} , {} , {} .", i == 0 ? " " : "\n", first + i, animal.name,
                            animal.colour, animal.place);
    }
    return answer;
  }
};

Rules DrawRules(Random& rng) {
  Rules rules;
  rules.first = 1 + static_cast<int>(rng.Below(60));
  const size_t n_animals = 4 + rng.Below(4);
  while (rules.cycle.size() < n_animals) {
    const std::string_view name = Pick(Animals(), rng);
    const auto is_it = [&](const Animal& animal) { return animal.name == name; };
    if (std::ranges::any_of(rules.cycle, is_it)) continue;
    const std::string_view colour = Pick(Colours(), rng);
    rules.cycle.push_back({name, colour, Pick(Places(), rng)});
  }
  return rules;
}

TaskExample GenerateRules(const TaskRequest& request) {
  Random rng = request.Stream(0);
  Rules rules = DrawFor(
      request.split, [&] { return DrawRules(rng); },
      [](const Rules& drawn) { return drawn.Content(); });
  // The facts stand in another order than they are asked for.
  std::vector<Animal> facts = rules.cycle;
  for (size_t i = facts.size(); i > 1; --i) std::swap(facts[i - 1], facts[rng.Below(i)]);
  std::vector<double> depths(facts.size());
  for (double& depth : depths) depth = rng.Uniform();
  std::ranges::sort(depths);
  rules.n_lines = request.length < 500 ? 15 : 15 + static_cast<int>(rng.Below(11));

  return FitLength(request, {.tokens = 14}, [&](int n_sentences) {
    Random prose = request.Stream(1);
    TaskExample example{.references = {rules.Answer()}, .stop = "\n\n"};
    int n_before = 0;
    for (size_t i = 0; i < facts.size(); ++i) {
      const int target = static_cast<int>(depths[i] * (n_sentences + 1));
      AppendSentences(ProseStyle::kPlain, target - n_before, prose, example.prompt);
      n_before = target;
      example.prompt += facts[i].Fact();
    }
    AppendSentences(ProseStyle::kPlain, n_sentences - n_before, prose, example.prompt);
    example.prompt.back() = '\n';
    example.prompt += fmt::format(
        "order : {} .\ncount from {} to {} . each line : number , animal , its colour , its "
        "place .\ncount :",
        rules.Order(), rules.first, rules.first + rules.n_lines - 1);
    return example;
  });
}

}  // namespace

TaskDefinition RulesTask() {
  return {.name = "rules",
          .description = "write fifteen to twenty-five lines that follow stated rules",
          .metric = TaskMetric::kLineMatch,
          .chance = 0,  // of another example's lines hardly one is at its place
          .default_length = 700,
          .min_length = 420,
          .generate = GenerateRules};
}

}  // namespace kvlathe

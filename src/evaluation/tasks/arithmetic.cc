#include <fmt/format.h>

#include <iterator>

#include "evaluation/tasks/definition.h"

namespace kvlathe {
namespace {

struct Problem {
  std::string expression, working;
};

// Three operations on numbers of two digits; results stay within 0..199.
Problem Draw(Random& rng) {
  const auto draw_number = [&] { return static_cast<int>(10 + rng.Below(90)); };
  int result = draw_number();
  Problem problem{.expression = std::to_string(result)};
  for (int i = 0; i < 3; ++i) {
    int next = 0, number = 0;
    do {
      number = draw_number();
      next = rng.Below(2) == 0 ? result + number : result - number;
    } while (next < 0 || next > 199);
    const char sign = next > result ? '+' : '-';
    fmt::format_to(std::back_inserter(problem.expression), " {} {}", sign, number);
    fmt::format_to(std::back_inserter(problem.working), " {} {} {} = {} ,", result, sign, number,
                   next);
    result = next;
  }
  fmt::format_to(std::back_inserter(problem.working), " answer {}", result);
  return problem;
}

TaskExample GenerateArithmetic(const TaskRequest& request) {
  return FitLength(request, {.tokens = 55}, [&](int n_shots) {
    Random rng = request.Stream(0);
    TaskExample example{.stop = "\n"};
    // The question comes last, so every number of shots asks its own.
    for (int i = 0; i <= n_shots; ++i) {
      const Problem problem = DrawFor(
          request.split, [&] { return Draw(rng); }, [](const Problem& p) { return p.expression; });
      if (i > 0) AppendAnswer("\n", example);
      example.prompt += fmt::format("compute {} :", problem.expression);
      example.references = {problem.working};
    }
    return example;
  });
}

}  // namespace

TaskDefinition ArithmeticTask() {
  return {.name = "arithmetic",
          .description = "three additions and subtractions, worked step by step",
          .metric = TaskMetric::kFinalAnswer,
          .chance = 0.0053,  // another example's answer, measured by the test
          .default_length = 240,
          .min_length = 80,
          .generate = GenerateArithmetic};
}

}  // namespace kvlathe

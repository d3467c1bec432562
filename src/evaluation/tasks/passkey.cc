#include <fmt/format.h>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/prose.h"

namespace kvlathe {
namespace {

TaskExample GeneratePasskey(const TaskRequest& request) {
  Random rng = request.Stream(0);
  const std::string key = DrawFor(
      request.split, [&] { return std::to_string(10000 + rng.Below(90000)); },
      [](const std::string& drawn) { return drawn; });
  const double depth = rng.Uniform();
  return FitLength(request, {.tokens = 14}, [&](int n_sentences) {
    Random prose = request.Stream(1);
    const int n_before = static_cast<int>(depth * (n_sentences + 1));
    TaskExample example{.references = {" " + key}, .stop = "."};
    AppendSentences(ProseStyle::kNatural, n_before, prose, example.prompt);
    example.prompt +=
        fmt::format("The pass key is {}. Remember it. {} is the pass key. ", key, key);
    AppendSentences(ProseStyle::kNatural, n_sentences - n_before, prose, example.prompt);
    example.prompt += "What is the pass key? The pass key is";
    return example;
  });
}

}  // namespace

TaskDefinition PasskeyTask() {
  return {.name = "passkey",
          .description = "find a number of five digits in a long text",
          .metric = TaskMetric::kExactMatch,
          .chance = 1.0 / 90000,
          .default_length = 1500,
          .min_length = 80,
          .generate = GeneratePasskey};
}

}  // namespace kvlathe

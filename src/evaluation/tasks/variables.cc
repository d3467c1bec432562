// Following a variable through assignments scattered over a text, as RULER's variable tracking
// does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/haystack.h"
#include "evaluation/tasks/parameters.h"

namespace kvlathe {
namespace {

struct Chain {
  std::string value;
  std::vector<std::string> names;  // each is set to the one before, the first to the value

  std::vector<std::string> Assignments() const {
    std::vector<std::string> lines;
    for (size_t i = 0; i < names.size(); ++i) {
      lines.push_back(i == 0 ? fmt::format("VAR {} = {}.", names[0], value)
                             : fmt::format("VAR {} = VAR {}.", names[i], names[i - 1]));
    }
    return lines;
  }
};

// Draws names and values that no chain of the example has yet.
class ChainSource {
 public:
  explicit ChainSource(Random rng) : rng_(rng) {}

  Chain Draw(int n_names) {
    Chain chain{.value = DrawNew([&] { return std::to_string(10000 + rng_.Below(90000)); })};
    for (int i = 0; i < n_names; ++i) chain.names.push_back(DrawNew([&] { return DrawName(); }));
    return chain;
  }

 private:
  std::string DrawName() {
    constexpr std::string_view kConsonants = "BDFGHJKLMNPRSTVWXZ", kVowels = "AEIOU";
    return {kConsonants[rng_.Below(kConsonants.size())], kVowels[rng_.Below(kVowels.size())],
            kConsonants[rng_.Below(kConsonants.size())]};
  }
  template <typename F>
  std::string DrawNew(const F& draw) {
    std::string drawn = draw();
    while (!taken_.insert(drawn).second) drawn = draw();
    return drawn;
  }

  Random rng_;
  std::set<std::string> taken_;
};

std::string Question(const Chain& chain) {
  return fmt::format(
      "Question: Which variables have the value {}?\nAnswer: The variables with the "
      "value {} are",
      chain.value, chain.value);
}

std::string Answer(const Chain& chain) {
  return fmt::format(" VAR {}", fmt::join(chain.names, ", VAR "));
}

// Each chain in its order, whatever lies between.
std::vector<HiddenSentence> Scatter(const std::vector<Chain>& chains, Random rng) {
  std::vector<HiddenSentence> hidden;
  for (const Chain& chain : chains) {
    std::vector<double> depths(chain.names.size());
    for (double& depth : depths) depth = rng.Uniform();
    std::ranges::sort(depths);
    const std::vector<std::string> lines = chain.Assignments();
    for (size_t i = 0; i < lines.size(); ++i) hidden.push_back({lines[i], depths[i]});
  }
  return hidden;
}

TaskExample GenerateVariables(int n_hops, int n_chains, const Haystack& haystack,
                              const TaskRequest& request) {
  ChainSource source(request.Stream(0));
  const Chain shown = source.Draw(n_hops + 1);
  std::vector<Chain> chains;
  // Of the asked chain the value decides the split.
  chains.push_back(DrawFor(
      request.split, [&] { return source.Draw(n_hops + 1); },
      [](const Chain& chain) { return chain.value; }));
  while (static_cast<int>(chains.size()) < n_chains) chains.push_back(source.Draw(n_hops + 1));
  TaskExample example{.whole_answer = Answer(chains[0]), .stop = "\n"};
  for (const std::string& name : chains[0].names) example.references.push_back(" " + name);
  const std::string before =
      fmt::format("Text: {}\n{}{}.\n\nText: ", fmt::join(shown.Assignments(), " "), Question(shown),
                  Answer(shown));
  const std::vector<HiddenSentence> hidden = Scatter(chains, request.Stream(1));
  return FitLength(request, {.tokens = 25}, [&](int n_sentences) {
    TaskExample fitted = example;
    fitted.prompt =
        before + Hide(hidden, haystack.Draw(request, 2, n_sentences)) + "\n" + Question(chains[0]);
    return fitted;
  });
}

}  // namespace

TaskDefinition VariablesTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack) {
  const int n_hops = parameters.Integer("hops", 2, 0, 10);
  const int n_chains = parameters.Integer("chains", 1, 1, 20);
  // Of every assignment, of the worked example's, and of three answers.
  const int n_lines = (n_hops + 1) * (n_chains + 2);
  return {.name = "variables",
          .description = "name the variables that have a value, by assignments over a long text",
          .metric = TaskMetric::kFound,
          // The variables of any one of the chains; of a single chain all have to be found.
          .chance = n_chains > 1 ? 1.0 / n_chains : 0,
          .default_length = std::max(1500, 120 + 20 * n_lines),
          .min_length = 120 + 20 * n_lines,
          .generate = [n_hops, n_chains, haystack](const TaskRequest& request) {
            return GenerateVariables(n_hops, n_chains, *haystack, request);
          }};
}

}  // namespace kvlathe

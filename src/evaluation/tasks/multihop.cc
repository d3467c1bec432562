#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/prose.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

// Things, each in the next one: item, container, room and, with three hops, building.
using HopChain = std::vector<std::string>;

std::string FactText(const std::string& inner, const std::string& outer) {
  return fmt::format("the {} is in the {}", inner, outer);
}

std::string ContentOf(const HopChain& chain) { return fmt::format("{}", fmt::join(chain, ">")); }

HopChain DrawChain(int hops, Random& rng) {
  HopChain chain;
  chain.push_back(fmt::format("{} {}", Pick(Materials(), rng), Pick(Items(), rng)));
  chain.push_back(fmt::format("{} {}", Pick(Adjectives(), rng), Pick(Containers(), rng)));
  chain.push_back(fmt::format("{} {}", Pick(Colours(), rng), Pick(Rooms(), rng)));
  if (hops == 3) {
    chain.push_back(fmt::format("{} {}", Pick(Adjectives(), rng), Pick(Buildings(), rng)));
  }
  return chain;
}

// " tame barrel , the tame barrel is in the grey parlour"
std::string AnswerOf(const HopChain& chain) {
  std::string answer = " " + chain[1];
  for (size_t i = 1; i + 1 < chain.size(); ++i) {
    answer += " , " + FactText(chain[i], chain[i + 1]);
  }
  return answer;
}

bool Overlaps(const HopChain& chain, const std::vector<HopChain>& others) {
  return std::ranges::any_of(others, [&](const HopChain& other) {
    return std::ranges::any_of(
        other, [&](const std::string& thing) { return std::ranges::count(chain, thing) > 0; });
  });
}

std::vector<std::string> ShuffledFacts(const std::vector<HopChain>& chains, Random& rng) {
  std::vector<std::string> facts;
  for (const HopChain& chain : chains) {
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      facts.push_back(FactText(chain[i], chain[i + 1]) + " . ");
    }
  }
  for (size_t i = facts.size(); i > 1; --i) std::swap(facts[i - 1], facts[rng.Below(i)]);
  return facts;
}

TaskExample GenerateMultihop(const TaskRequest& request) {
  Random rng = request.Stream(0);
  const int hops = request.length < 200 ? 2 : 2 + static_cast<int>(rng.Below(2));
  const size_t n_chains = std::clamp(request.length / 100, 2, 24);
  std::vector<HopChain> chains;
  while (chains.size() < n_chains) {
    // Not all are asked for, but every chain keeps to the split.
    HopChain chain = DrawFor(
        request.split, [&] { return DrawChain(hops, rng); }, ContentOf);
    if (!Overlaps(chain, chains)) chains.push_back(std::move(chain));
  }
  const std::vector<std::string> facts = ShuffledFacts(chains, rng);
  std::vector<double> depths(facts.size());
  for (double& depth : depths) depth = rng.Uniform();
  std::ranges::sort(depths);

  // Training examples ask several questions: an answer is what they teach.
  const bool is_training = request.split == TaskSplit::kTrain;
  const size_t n_asked = is_training ? 1 + rng.Below(n_chains) : 1;
  return FitLength(request, {.tokens = 14}, [&](int n_sentences) {
    Random prose = request.Stream(1);
    TaskExample example{.stop = " ."};
    int n_before = 0;
    for (size_t i = 0; i < facts.size(); ++i) {
      const int target = static_cast<int>(depths[i] * (n_sentences + 1));
      AppendSentences(ProseStyle::kPlain, target - n_before, prose, example.prompt);
      n_before = target;
      example.prompt += facts[i];
    }
    AppendSentences(ProseStyle::kPlain, n_sentences - n_before, prose, example.prompt);
    example.prompt.back() = '\n';
    for (size_t i = 0; i < n_asked; ++i) {
      if (i > 0) AppendAnswer(" .\n", example);
      const std::string& thing = chains[i][0];
      example.prompt += fmt::format("where is the {} ? the {} is in the", thing, thing);
      example.references = {AnswerOf(chains[i])};
    }
    return example;
  });
}

}  // namespace

TaskDefinition MultihopTask() {
  return {.name = "multihop",
          .description = "follow two or three facts scattered over a text",
          .metric = TaskMetric::kExactMatch,
          .chance = 1.0 / 7,  // one of the chains of the prompt
          .default_length = 700,
          .min_length = 140,
          .generate = GenerateMultihop};
}

}  // namespace kvlathe

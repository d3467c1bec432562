#include "evaluation/task_runs/task_shots.h"

#include <algorithm>
#include <optional>

namespace kvlathe {
namespace {

constexpr std::string_view kBetweenShots = "\n\n";

// Finds how many shots reach a number of tokens. Counting the tokens of a long prompt anew for
// every shot would take most of the time, so the counts of single shots tell where to look.
class ShotCounter {
 public:
  ShotCounter(const TaskFile& file, const TokenCounter& count_tokens)
      : file_(file), count_tokens_(count_tokens), lengths_(file.examples.size()) {}

  // The first n shots of example i.
  std::string Text(size_t i, size_t n) const {
    std::string text;
    for (size_t k = 0; k < n; ++k) {
      text += SolvedText(file_.examples[ShotOf(i, file_.examples.size(), k)]);
      text += kBetweenShots;
    }
    return text;
  }

  StatusOr<size_t> Fewest(size_t i, int min_tokens) {
    const size_t n_most = file_.examples.size() - 1;
    size_t n = Guess(i, min_tokens);
    while (n > 0 && Count(i, n - 1) >= min_tokens) --n;
    for (int n_tokens = 0; (n_tokens = Count(i, n)) < min_tokens; ++n) {
      if (n == n_most) {
        return Error(StatusCode::kInvalidArgument,
                     "task {}, example {}: the prompt has {} tokens with the {} shots that the "
                     "file can give, and --shot-tokens asks for {}",
                     file_.name, i + 1, n_tokens, n_most, min_tokens);
      }
    }
    return n;
  }

 private:
  int Count(size_t i, size_t n) const {
    return count_tokens_(Text(i, n) + file_.examples[i].prompt);
  }
  // By the sum of what the shots have on their own, which is off by the tokens at their boundaries.
  size_t Guess(size_t i, int min_tokens) {
    const size_t n_examples = file_.examples.size();
    int64_t n_tokens = count_tokens_(file_.examples[i].prompt);
    size_t n = 0;
    for (; n_tokens < min_tokens && n + 1 < n_examples; ++n) {
      std::optional<int>& length = lengths_[ShotOf(i, n_examples, n)];
      if (!length.has_value()) {
        std::string text = SolvedText(file_.examples[ShotOf(i, n_examples, n)]);
        length = count_tokens_(text.append(kBetweenShots));
      }
      n_tokens += *length;
    }
    return n;
  }

  const TaskFile& file_;
  const TokenCounter& count_tokens_;
  std::vector<std::optional<int>> lengths_;  // in tokens, of the examples as shots
};

}  // namespace

size_t ShotOf(size_t i, size_t n, size_t k) {
  const size_t to_itself = n - n / 2;  // this many steps lead from half a file away to the example
  return (i + n / 2 + k + (k >= to_itself ? 1 : 0)) % n;
}

std::string SolvedText(const TaskExample& example) {
  const std::string& prompt =
      example.choice_prompts.empty() ? example.prompt : example.choice_prompts[example.answer];
  return prompt + example.references[0];
}

Status CheckShots(const TaskFile& file, const ShotRule& rule) {
  if (!rule.asks_for_any()) return OkStatus();
  if (!file.takes_shots) {
    return Error(StatusCode::kInvalidArgument,
                 "task {}: takes no shots; run it without --shots and --shot-tokens", file.name);
  }
  const size_t n_examples = file.examples.size();
  if (rule.min_tokens > 0 && n_examples < 2) {
    return Error(StatusCode::kInvalidArgument,
                 "task {}: the file has one question, and shots are the others", file.name);
  }
  if (static_cast<size_t>(rule.count) >= n_examples) {
    return Error(
        StatusCode::kInvalidArgument,
        "task {}: the file has {} questions, so that one can have {} shots at most, not {}",
        file.name, n_examples, n_examples - 1, rule.count);
  }
  return OkStatus();
}

StatusOr<ShotExamples> AddShots(const TaskFile& file, size_t n_examples, const ShotRule& rule,
                                const TokenCounter& count_tokens) {
  KVL_RETURN_IF_ERROR(CheckShots(file, rule));
  n_examples = std::min(n_examples, file.examples.size());
  ShotExamples with_shots{.mean_shots = static_cast<double>(file.n_shots)};
  ShotCounter counter(file, count_tokens);
  for (size_t i = 0; i < n_examples; ++i) {
    TaskExample example = file.examples[i];
    size_t n_shots = static_cast<size_t>(rule.count);
    if (rule.min_tokens > 0) {
      KVL_ASSIGN_OR_RETURN(n_shots, counter.Fewest(i, rule.min_tokens));
    }
    const std::string shots = counter.Text(i, n_shots);
    example.prompt.insert(0, shots);
    for (std::string& prompt : example.choice_prompts) prompt.insert(0, shots);
    with_shots.examples.push_back(std::move(example));
    with_shots.mean_shots += static_cast<double>(n_shots) / static_cast<double>(n_examples);
  }
  return with_shots;
}

}  // namespace kvlathe

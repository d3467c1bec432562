// The tasks "sort" and "copy": the answer is a list as long as the question.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

constexpr int kSortedNumbers = 12;

std::vector<int> DrawNumbers(Random& rng) {
  std::vector<int> numbers;
  while (numbers.size() < kSortedNumbers) {
    const int number = static_cast<int>(10 + rng.Below(90));
    if (std::ranges::find(numbers, number) == numbers.end()) numbers.push_back(number);
  }
  return numbers;
}

std::string SortedText(std::vector<int> numbers) {
  std::ranges::sort(numbers);
  return fmt::format("{}", fmt::join(numbers, " "));
}

TaskExample GenerateSort(const TaskRequest& request) {
  return FitLength(request, {.tokens = 70}, [&](int n_shots) {
    Random rng = request.Stream(0);
    TaskExample example{.stop = "\n"};
    for (int i = 0; i <= n_shots; ++i) {
      const std::vector<int> numbers = DrawFor(
          request.split, [&] { return DrawNumbers(rng); }, SortedText);
      if (i > 0) AppendAnswer("\n", example);
      example.prompt += fmt::format("sort {} :", fmt::join(numbers, " "));
      example.references = {fmt::format(" {}", SortedText(numbers))};
    }
    return example;
  });
}

// The first words decide the split, so that a longer list extends a shorter one.
constexpr int kLeadingWords = 8;

// Common words in random order, none again before all were dealt: what follows a word is then known
// from that word alone, up to a few hundred of them.
class WordDeck {
 public:
  explicit WordDeck(Random rng) : rng_(rng) {}

  void Shuffle() { left_.clear(); }
  // n words, a space in front of each.
  std::string Deal(int n) {
    std::string words;
    for (int i = 0; i < n; ++i) {
      if (left_.empty()) left_.assign(CommonWords().begin(), CommonWords().end());
      std::swap(left_[rng_.Below(left_.size())], left_.back());
      (words += ' ') += left_.back();
      left_.pop_back();
    }
    return words;
  }

 private:
  Random rng_;
  std::vector<std::string_view> left_;
};

TaskExample GenerateCopy(const TaskRequest& request) {
  WordDeck deck(request.Stream(0));
  const auto deal_leading = [&] {
    deck.Shuffle();
    return deck.Deal(kLeadingWords);
  };
  const std::string first_words =
      DrawFor(request.split, deal_leading, [](const std::string& words) { return words; });
  // Training examples repeat shorter lists several times: only the first time is nothing to learn.
  Random rng = request.Stream(1);
  const int n_more = request.split == TaskSplit::kTrain ? static_cast<int>(rng.Below(4)) : 0;
  return FitLength(request, {.min = kLeadingWords, .tokens = 3 + n_more}, [&](int n_words) {
    WordDeck rest = deck;
    const std::string words = first_words + rest.Deal(n_words - kLeadingWords);
    TaskExample example{
        .prompt = fmt::format("copy :{}\nagain :", words), .references = {words}, .stop = "\n"};
    for (int i = 0; i < n_more; ++i) AppendAnswer("\nagain :", example);
    return example;
  });
}

}  // namespace

TaskDefinition SortTask() {
  return {.name = "sort",
          .description = "sort twelve numbers of two digits",
          .metric = TaskMetric::kExactMatch,
          .chance = 0,  // one of 10^14 lists
          .default_length = 250,
          .min_length = 80,
          .generate = GenerateSort};
}

TaskDefinition CopyTask() {
  return {.name = "copy",
          .description = "repeat a list of random words",
          .metric = TaskMetric::kExactMatch,
          .chance = 0,
          .default_length = 300,
          .min_length = 150,
          .generate = GenerateCopy};
}

}  // namespace kvlathe

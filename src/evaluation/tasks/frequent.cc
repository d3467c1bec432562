// The words that come most often in a list, as RULER's common-words task asks for them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/parameters.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

// Of a round, for every frequent word.
constexpr int kOthersPerWord = 2;

struct FrequentSettings {
  int words = 3;   // that come often
  int ratio = 10;  // how many times as often as any other word

  int n_others() const { return words * kOthersPerWord * ratio; }
};

struct WordSource {
  std::vector<std::string_view> frequent, others;
};

void Shuffle(std::vector<std::string_view>* words, Random& rng) {
  for (size_t i = words->size(); i > 1; --i) std::swap((*words)[i - 1], (*words)[rng.Below(i)]);
}

WordSource DrawWords(const FrequentSettings& settings, Random rng) {
  std::vector<std::string_view> words(CommonWords().begin(), CommonWords().end());
  Shuffle(&words, rng);
  const auto end = words.begin() + settings.words;
  return {{words.begin(), end}, {end, end + settings.n_others()}};
}

// Every round has each frequent word once and kOthersPerWord others for each; the others take
// turns.
std::string List(const WordSource& source, int n_rounds, Random rng) {
  std::vector<std::string_view> list;
  size_t next = 0;
  for (int i = 0; i < n_rounds; ++i) {
    list.insert(list.end(), source.frequent.begin(), source.frequent.end());
    for (size_t k = 0; k < source.frequent.size() * kOthersPerWord; ++k) {
      list.push_back(source.others[next++ % source.others.size()]);
    }
  }
  Shuffle(&list, rng);
  return fmt::format("Words: {}\n", fmt::join(list, " "));
}

std::string Question(size_t n_words) {
  return n_words == 1 ? "Answer: the word that comes most often is"
                      : fmt::format("Answer: the {} words that come most often are", n_words);
}

TaskExample GenerateFrequent(const FrequentSettings& settings, const TaskRequest& request) {
  const WordSource shown = DrawWords(settings, request.Stream(0));
  Random rng = request.Stream(1);
  const WordSource asked = DrawFor(
      request.split, [&] { return DrawWords(settings, Random(rng.Next())); },
      [](const WordSource& source) { return fmt::format("{}", fmt::join(source.frequent, " ")); });
  constexpr int kShownRounds = 4;
  const std::string question = Question(asked.frequent.size());
  const std::string before =
      fmt::format("{}{} {}.\n\n", List(shown, kShownRounds, request.Stream(2)), question,
                  fmt::join(shown.frequent, ", "));
  TaskExample example{.whole_answer = fmt::format(" {}", fmt::join(asked.frequent, ", ")),
                      .stop = "\n"};
  for (const std::string_view word : asked.frequent) {
    example.references.push_back(fmt::format(" {}", word));
  }
  const UnitRange range = {.min = 2, .tokens = 5 * settings.words};
  return FitLength(request, range, [&](int n_rounds) {
    TaskExample fitted = example;
    fitted.prompt = before + List(asked, n_rounds, request.Stream(3)) + question;
    return fitted;
  });
}

}  // namespace

TaskDefinition FrequentTask(TaskParameters& parameters, std::shared_ptr<const Haystack>) {
  FrequentSettings settings;
  settings.words = parameters.Integer("words", 3, 1, 10);
  settings.ratio = parameters.Integer("ratio", 10, 2, 20);
  return {.name = "frequent",
          .description = "name the words that come most often in a list",
          .metric = TaskMetric::kFound,
          // Words of the list, whichever.
          .chance = settings.words / static_cast<double>(settings.words + settings.n_others()),
          .default_length = 1500,
          .min_length = 100 + 100 * settings.words,
          .generate = [settings](const TaskRequest& request) {
            return GenerateFrequent(settings, request);
          }};
}

}  // namespace kvlathe

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

struct Record {
  std::string key, value;

  std::string Line() const { return fmt::format("{} {}", key, value); }
};

// Keys of one word come first: nothing lies between a key and its value, so that a model finds the
// value as it finds what followed a word before. Longer lists go on with keys of two words.
constexpr int kOneWordKeys = 200;

// Draws records no two of which share a key or a value. No word of a key is one of a value.
class RecordSource {
 public:
  explicit RecordSource(Random rng) : rng_(rng) {}

  Record Draw() {
    Record record;
    const bool is_long = n_drawn_++ >= kOneWordKeys;
    do {
      record.key = PickKeyWord();
      if (is_long) record.key = fmt::format("{} {}", record.key, PickKeyWord());
    } while (!taken_.insert(record.key).second);
    do {
      const std::string_view a = Pick(Nouns(), rng_), b = Pick(Nouns(), rng_);
      record.value = fmt::format("{} {} {}", a, b, Pick(Nouns(), rng_));
    } while (!taken_.insert(record.value).second);
    return record;
  }

 private:
  std::string_view PickKeyWord() {
    std::string_view word;
    do {
      word = Pick(CommonWords(), rng_);
    } while (std::ranges::find(Nouns(), word) != Nouns().end());
    return word;
  }

  Random rng_;
  int n_drawn_ = 0;
  std::set<std::string> taken_;
};

// Training examples ask for up to half of their records: an answer is what they teach, and the
// records are only read for it.
int DrawQuestionCount(const TaskRequest& request, Random& rng) {
  if (request.split == TaskSplit::kTrain) {
    return 1 + static_cast<int>(rng.Below(std::max(1, request.length / 20)));
  }
  // Short examples have few records, and not all of them should be asked for.
  return std::min<int>(1 + rng.Below(5), std::max(1, request.length / 100));
}

TaskExample Generate(const TaskRequest& request) {
  Random rng = request.Stream(0);
  RecordSource source(request.Stream(1));
  const int n_asked = DrawQuestionCount(request, rng);
  std::vector<Record> asked;
  for (int i = 0; i < n_asked; ++i) {
    asked.push_back(DrawFor(
        request.split, [&] { return source.Draw(); }, [](const Record& r) { return r.Line(); }));
  }
  // Beyond a few thousand records the keys would run out.
  const UnitRange range = {.min = std::max(4, n_asked), .max = 2500, .tokens = 9};
  std::vector<Record> others;
  return FitLength(request, range, [&](int n_records) {
    while (n_asked + static_cast<int>(others.size()) < n_records) others.push_back(source.Draw());
    std::vector<const Record*> order;
    for (const Record& record : asked) order.push_back(&record);
    for (int i = 0; i < n_records - n_asked; ++i) order.push_back(&others[i]);
    Random shuffle = request.Stream(2);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[shuffle.Below(i)]);

    TaskExample example{.stop = "\n"};
    for (const Record* record : order) example.prompt += record->Line() + "\n";
    example.prompt += "recall\n";
    for (const Record& record : asked) {
      if (!example.references.empty()) AppendAnswer("\n", example);
      example.prompt += record.key;
      example.references = {" " + record.value};
    }
    return example;
  });
}

}  // namespace

TaskDefinition RecallTask() {
  return {.name = "recall",
          .description = "repeat the value of one of many keys, after other questions",
          .metric = TaskMetric::kExactMatch,
          .chance = 1.0 / 96,  // one of the values of the prompt
          .default_length = 700,
          .min_length = 120,
          .generate = Generate};
}

}  // namespace kvlathe

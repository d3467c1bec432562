#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

struct KeyedRecord {
  std::string key, value;

  std::string Line() const { return fmt::format("{} {}", key, value); }
};

// Keys of one word come first: nothing lies between a key and its value, so that a model finds the
// value as it finds what followed a word before. Longer lists go on with keys of two words.
constexpr size_t kOneWordKeys = 200;

// Draws records no two of which share a key or a value. No word of a key is one of a value, and
// none is in two values before all were used (at some 110 records): what follows a word is then
// known from that word alone.
class RecordSource {
 public:
  explicit RecordSource(Random rng) : rng_(rng) {
    for (const std::string_view word : CommonWords()) {
      if (std::ranges::find(Nouns(), word) == Nouns().end()) key_words_.push_back(word);
    }
    for (size_t i = key_words_.size(); i > 1; --i) {
      std::swap(key_words_[i - 1], key_words_[rng_.Below(i)]);
    }
    value_words_.assign(key_words_.begin() + kOneWordKeys, key_words_.end());
    value_words_.insert(value_words_.end(), Nouns().begin(), Nouns().end());
    key_words_.resize(kOneWordKeys);
  }

  // Of records that do not fit nothing is used up.
  template <typename Fits>
  KeyedRecord Draw(const Fits& fits) {
    KeyedRecord record{.key = NextKey()};
    do {
      record.value = PickValue();
    } while (taken_.contains(record.value) || !fits(record));
    left_.resize(left_.size() - kValueWords);
    taken_.insert(record.value);
    return record;
  }

 private:
  static constexpr size_t kValueWords = 3;

  std::string NextKey() {
    if (n_drawn_ < kOneWordKeys) return std::string(key_words_[n_drawn_++]);
    std::string key;
    do {
      key = fmt::format("{} {}", Pick(key_words_, rng_), Pick(key_words_, rng_));
    } while (!taken_.insert(key).second);
    return key;
  }
  // Brings words of a value to the end of those that are left.
  std::string PickValue() {
    if (left_.size() < kValueWords) left_ = value_words_;
    std::string value;
    for (size_t i = left_.size(); i > left_.size() - kValueWords; --i) {
      std::swap(left_[i - 1], left_[rng_.Below(i)]);
      value += value.empty() ? "" : " ";
      value += left_[i - 1];
    }
    return value;
  }

  Random rng_;
  std::vector<std::string_view> key_words_, value_words_, left_;
  size_t n_drawn_ = 0;
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

TaskExample GenerateRecall(const TaskRequest& request) {
  Random rng = request.Stream(0);
  RecordSource source(request.Stream(1));
  const int n_asked = DrawQuestionCount(request, rng);
  std::vector<KeyedRecord> asked;
  for (int i = 0; i < n_asked; ++i) {
    asked.push_back(
        source.Draw([&](const KeyedRecord& r) { return BelongsTo(request.split, r.Line()); }));
  }
  // Beyond a few thousand records the keys would run out.
  const UnitRange range = {.min = std::max(4, n_asked), .max = 2500, .tokens = 9};
  std::vector<KeyedRecord> others;
  return FitLength(request, range, [&](int n_records) {
    while (n_asked + static_cast<int>(others.size()) < n_records) {
      others.push_back(source.Draw([](const KeyedRecord&) { return true; }));
    }
    std::vector<const KeyedRecord*> order;
    for (const KeyedRecord& record : asked) order.push_back(&record);
    for (int i = 0; i < n_records - n_asked; ++i) order.push_back(&others[i]);
    Random shuffle = request.Stream(2);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[shuffle.Below(i)]);

    TaskExample example{.stop = "\n"};
    for (const KeyedRecord* record : order) example.prompt += record->Line() + "\n";
    example.prompt += "recall\n";
    for (const KeyedRecord& record : asked) {
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
          .generate = GenerateRecall};
}

}  // namespace kvlathe

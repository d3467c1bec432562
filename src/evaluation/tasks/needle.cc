// Retrieval of hidden values by their keys, in the variants of RULER: several keys, several values
// of a key, several keys asked for; numbers, words or identifiers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/haystack.h"
#include "evaluation/tasks/parameters.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

enum class Kind { kNumbers, kWords, kUuids };
constexpr std::string_view kKindNames[] = {"numbers", "words", "uuids"};

struct NeedleSettings {
  int keys = 1, values = 1, queries = 1;
  Kind kind = Kind::kNumbers;
  double depth = -1;  // negative: drawn for every sentence

  int n_answers() const { return queries * values; }
  int n_hidden() const { return keys - queries + n_answers(); }
  std::string_view noun() const {
    return kind == Kind::kNumbers ? "number" : kind == Kind::kWords ? "word" : "code";
  }
};

struct Entry {
  std::string key;
  std::vector<std::string> values;
};

// Seven different digits: where one stands twice, small models lose their place in the number, and
// that is not what the task asks about.
std::string DrawNumber(Random& rng) {
  std::string digits = "0123456789";
  do {
    for (size_t i = digits.size(); i > 1; --i) std::swap(digits[i - 1], digits[rng.Below(i)]);
  } while (digits[0] == '0');
  return digits.substr(0, 7);
}
constexpr double kNumberCount = 9.0 * 9 * 8 * 7 * 6 * 5 * 4;

std::string DrawUuid(Random& rng) {
  const uint64_t a = rng.Next(), b = rng.Next();
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", a >> 32, (a >> 16) & 0xFFFF, a & 0xFFFF,
                     b >> 48, b & 0xFFFFFFFFFFFF);
}

std::string DrawValue(Kind kind, Random& rng) {
  if (kind == Kind::kNumbers) return DrawNumber(rng);
  if (kind == Kind::kUuids) return DrawUuid(rng);
  const std::string_view material = Pick(Materials(), rng);
  return fmt::format("{}-{}", material, Pick(Animals(), rng));
}

// The worked example's, which no other key or value equals.
std::array<Entry, 2> ExampleEntries(Kind kind, int n_values) {
  Random rng(0, 0);
  std::array<Entry, 2> entries = {{{"odd gate", {}}, {"thin roof", {}}}};
  for (Entry& entry : entries) {
    for (int i = 0; i < n_values; ++i) entry.values.push_back(DrawValue(kind, rng));
  }
  return entries;
}

std::vector<std::string_view> Shuffled(WordList words, Random& rng) {
  std::vector<std::string_view> shuffled(words.begin(), words.end());
  for (size_t i = shuffled.size(); i > 1; --i) {
    std::swap(shuffled[i - 1], shuffled[rng.Below(i)]);
  }
  return shuffled;
}

// The asked keys first. No noun names two keys, no value is drawn twice.
std::vector<Entry> DrawEntries(const NeedleSettings& settings, const TaskRequest& request) {
  Random rng = request.Stream(0);
  const std::vector<std::string_view> nouns = Shuffled(Nouns(), rng);
  const std::vector<std::string_view> adjectives = Shuffled(Adjectives(), rng);
  std::set<std::string> taken;
  for (const Entry& entry : ExampleEntries(settings.kind, settings.values)) {
    taken.insert(entry.values.begin(), entry.values.end());
  }
  std::vector<Entry> entries;
  for (int k = 0; k < settings.keys; ++k) {
    Entry entry{fmt::format("{} {}", adjectives[k % adjectives.size()], nouns[k]), {}};
    for (int v = 0; v < (k < settings.queries ? settings.values : 1); ++v) {
      const std::string value = DrawFor(
          request.split,
          [&] {
            std::string drawn = DrawValue(settings.kind, rng);
            while (taken.contains(drawn)) drawn = DrawValue(settings.kind, rng);
            return drawn;
          },
          [&](const std::string& drawn) { return entry.key + drawn; });
      taken.insert(value);
      entry.values.push_back(value);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

// What a question begins its answer with, and what hides a value: the same words, so that plain
// continuation finds it.
std::string Statement(const NeedleSettings& settings, std::string_view key) {
  return fmt::format("{} secret {} of the {} is", settings.values > 1 ? "One" : "The",
                     settings.noun(), key);
}

std::string Question(const NeedleSettings& settings, std::span<const Entry> asked) {
  std::string keys;
  for (size_t i = 0; i < asked.size(); ++i) {
    keys += i == 0 ? "the " : i + 1 < asked.size() ? ", the " : " and the ";
    keys += asked[i].key;
  }
  const bool one = settings.n_answers() == 1;
  return fmt::format("Question: What {} the secret {}{} of {}?\nAnswer: {}", one ? "is" : "are",
                     settings.noun(), one ? "" : "s", keys, Statement(settings, asked[0].key));
}

// Behind the first statement, which the question has.
std::string Answer(const NeedleSettings& settings, std::span<const Entry> asked) {
  std::string answer;
  for (const Entry& entry : asked) {
    for (const std::string& value : entry.values) {
      if (!answer.empty()) answer += fmt::format(". {}", Statement(settings, entry.key));
      answer += fmt::format(" {}", value);
    }
  }
  return answer;
}

void AppendHidden(const NeedleSettings& settings, const Entry& entry, double depth, Random& rng,
                  std::vector<HiddenSentence>* hidden) {
  for (const std::string& value : entry.values) {
    hidden->push_back({fmt::format("{} {}.", Statement(settings, entry.key), value),
                       depth < 0 ? rng.Uniform() : depth});
  }
}

// Where several values are to be given, the form of the answer is shown on a short text.
std::string WorkedExample(const NeedleSettings& settings) {
  const std::array<Entry, 2> all = ExampleEntries(settings.kind, settings.values);
  const std::span<const Entry> asked(all.data(), settings.queries > 1 ? 2 : 1);
  std::string text;
  for (const Entry& entry : asked) {
    for (const std::string& value : entry.values) {
      text += text.empty() ? "" : " The wind was cold. ";
      text += fmt::format("{} {}.", Statement(settings, entry.key), value);
    }
  }
  return fmt::format("Text: {}\n{}{}.\n\nText: ", text, Question(settings, asked),
                     Answer(settings, asked));
}

TaskExample GenerateNeedle(const NeedleSettings& settings, const Haystack& haystack,
                           const TaskRequest& request) {
  const std::vector<Entry> entries = DrawEntries(settings, request);
  const std::span<const Entry> asked(entries.data(), settings.queries);
  Random places = request.Stream(1);
  std::vector<HiddenSentence> hidden;
  for (size_t k = 0; k < entries.size(); ++k) {
    AppendHidden(settings, entries[k], k < asked.size() ? settings.depth : -1, places, &hidden);
  }
  const bool one = settings.n_answers() == 1;
  const std::string before =
      one ? fmt::format("A secret {} is hidden in the text below. Remember it.\n\n",
                        settings.noun())
          : WorkedExample(settings);
  TaskExample example{.stop = one ? "." : "\n"};
  for (const Entry& entry : asked) {
    for (const std::string& value : entry.values) example.references.push_back(" " + value);
  }
  if (!one) example.whole_answer = Answer(settings, asked);
  return FitLength(request, {.tokens = 25}, [&](int n_sentences) {
    TaskExample fitted = example;
    fitted.prompt = before + Hide(hidden, haystack.Draw(request, 2, n_sentences)) +
                    (one ? "\n\n" : "\n") + Question(settings, asked);
    return fitted;
  });
}

// A blind answer takes the values of the text in any order; where all of them are asked for, it
// has to find them all the same.
double ChanceOf(const NeedleSettings& settings) {
  if (settings.keys > settings.queries) {
    return settings.n_answers() / static_cast<double>(settings.n_hidden());
  }
  switch (settings.kind) {
    case Kind::kNumbers:
      return 1 / kNumberCount;
    case Kind::kWords:
      return 1.0 / static_cast<double>(Materials().size() * Animals().size());
    case Kind::kUuids:
      break;
  }
  return 0;
}

}  // namespace

TaskDefinition NeedleTask(TaskParameters& parameters, std::shared_ptr<const Haystack> haystack) {
  NeedleSettings settings;
  settings.queries = parameters.Integer("queries", 1, 1, 10);
  settings.keys = parameters.Integer("keys", settings.queries, 1, 100);
  settings.values = parameters.Integer("values", 1, 1, 10);
  settings.kind = static_cast<Kind>(parameters.Choice("kind", 0, kKindNames));
  settings.depth = parameters.Number("depth", -1, 0, 1);
  if (settings.queries > settings.keys) {
    parameters.Refuse(fmt::format("queries={} asks for more keys than keys={} has",
                                  settings.queries, settings.keys));
    settings.queries = settings.keys;
  }
  const int value_tokens = settings.kind == Kind::kUuids ? 45 : 14;
  // Hidden, asked for and in the worked example.
  const int n_values = settings.n_hidden() + 5 * settings.n_answers();
  return {.name = "needle",
          .description = "give the values of keys, hidden in a long text",
          .metric = TaskMetric::kFound,
          .chance = ChanceOf(settings),
          .default_length = std::max(3400, 120 + n_values * (16 + value_tokens)),
          .min_length = 120 + n_values * (16 + value_tokens),
          .generate = [settings, haystack](const TaskRequest& request) {
            return GenerateNeedle(settings, *haystack, request);
          }};
}

}  // namespace kvlathe

// Facts about a person in sentences, to be written as a JSON object after worked examples: an
// answer that a program has to be able to read.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/parameters.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

constexpr std::string_view kFirstNames[] = {
    "Alice", "Boris", "Carla",  "David", "Elena", "Frank", "Grace", "Hugo",  "Irene", "Jonas",
    "Karin", "Leo",   "Martha", "Niels", "Olga",  "Peter", "Rosa",  "Simon", "Tessa", "Victor"};
constexpr std::string_view kCities[] = {"Oslo",   "Paris",  "Lisbon", "Vienna", "Prague",
                                        "Dublin", "Athens", "Warsaw", "Madrid", "Rome",
                                        "Berlin", "London", "Cairo",  "Lima",   "Tokyo",
                                        "Delhi",  "Boston", "Quito",  "Sydney", "Seoul"};
constexpr std::string_view kJobs[] = {"baker",  "painter", "nurse",   "teacher", "farmer",
                                      "lawyer", "pilot",   "singer",  "driver",  "dentist",
                                      "judge",  "miner",   "plumber", "tailor",  "writer"};
constexpr std::string_view kPets[] = {"cat",    "dog",   "hamster", "parrot",  "rabbit",
                                      "turtle", "snake", "pony",    "goldfish"};

// One kind of fact: how many values it may have, its sentence and what stands in the object.
struct Field {
  std::string_view key;
  int n_values;
  // $n is the name, $v the value.
  std::string_view sentence;
};
constexpr std::array<Field, 8> kFields = {{
    {"name", std::size(kFirstNames), ""},  // stands in the others' sentences
    {"age", 60, "$n is $v years old."},
    {"city", std::size(kCities), "$n lives in $v."},
    {"job", std::size(kJobs), "$n works as a $v."},
    {"pet", std::size(kPets), "$n keeps a $v."},
    {"children", 8, "$n has $v children."},
    {"salary", 800, "$n earns $v a month."},
    {"married", 2, "$n is $v."},
}};

std::string ValueText(size_t field, int index) {
  switch (field) {
    case 0:
      return std::string(kFirstNames[index]);
    case 1:
      return std::to_string(20 + index);
    case 2:
      return std::string(kCities[index]);
    case 3:
      return std::string(kJobs[index]);
    case 4:
      return std::string(kPets[index]);
    case 5:
      return std::to_string(2 + index);
    case 6:
      return std::to_string(1000 + 10 * index);
    default:
      return index == 0 ? "not married" : "married";
  }
}

bool IsText(size_t field) { return field == 0 || (field >= 2 && field <= 4); }

std::string Fill(std::string_view pattern, std::string_view name, std::string_view value) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '$') {
      text += pattern[i];
    } else {
      text += pattern[++i] == 'n' ? name : value;
    }
  }
  return text;
}

struct Record {
  std::string sentences, object;
};

// The sentences come in any order, the fields in theirs.
Record DrawRecord(int n_fields, Random& rng) {
  std::vector<std::string> sentences, fields;
  std::string name;
  for (size_t f = 0; f < static_cast<size_t>(n_fields); ++f) {
    const int index = static_cast<int>(rng.Below(kFields[f].n_values));
    const std::string value = ValueText(f, index);
    if (f == 0) name = value;
    const bool is_truth = kFields[f].n_values == 2;
    const std::string_view truth = index == 0 ? "false" : "true";
    fields.push_back(IsText(f)
                         ? fmt::format("\"{}\": \"{}\"", kFields[f].key, value)
                         : fmt::format("\"{}\": {}", kFields[f].key, is_truth ? truth : value));
    if (f > 0) sentences.push_back(Fill(kFields[f].sentence, name, value));
  }
  for (size_t i = sentences.size(); i > 1; --i) {
    std::swap(sentences[i - 1], sentences[rng.Below(i)]);
  }
  return {fmt::format("{}", fmt::join(sentences, " ")),
          fmt::format(" {{{}}}", fmt::join(fields, ", "))};
}

TaskExample GenerateJson(int n_fields, const TaskRequest& request) {
  return FitLength(request, {.min = 1, .tokens = 30 * n_fields}, [&](int n_shots) {
    Random rng = request.Stream(0);
    TaskExample example{.stop = "\n"};
    // The record that is asked for is the first drawn, so that every length asks for the same.
    const auto draw = [&] {
      return DrawFor(
          request.split, [&] { return DrawRecord(n_fields, rng); },
          [](const Record& record) { return record.object; });
    };
    const Record asked = draw();
    for (int i = 0; i <= n_shots; ++i) {
      const Record record = i < n_shots ? draw() : asked;
      if (i > 0) AppendAnswer("\n\n", example);
      example.prompt += fmt::format("Text: {}\nJSON:", record.sentences);
      example.references = {record.object};
    }
    return example;
  });
}

double ChanceOf(int n_fields) {
  double sum = 0;
  for (int f = 0; f < n_fields; ++f) sum += 1.0 / kFields[f].n_values;
  return sum / n_fields;
}

}  // namespace

TaskDefinition JsonTask(TaskParameters& parameters, std::shared_ptr<const Haystack>) {
  const int n_fields = parameters.Integer("fields", 4, 2, static_cast<int>(kFields.size()));
  return {.name = "json",
          .description = "write facts of a text as a JSON object, after worked examples",
          .metric = TaskMetric::kJsonFields,
          .chance = ChanceOf(n_fields),
          .default_length = 1500,
          .min_length = 60 + 60 * n_fields,
          .generate = [n_fields](const TaskRequest& request) {
            return GenerateJson(n_fields, request);
          }};
}

}  // namespace kvlathe

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

struct CodeField {
  std::string name, type, initial;
};

// $f, $t and $d stand for a field's name, type and default.
struct Pattern {
  std::string_view header, body;
};

constexpr Pattern kPatterns[] = {
    {"get_$f(self)", "return self.$f"},
    {"set_$f(self, value: $t)", "check(value, $t)\n    self.$f = value\n    return self"},
    {"reset_$f(self)", "self.$f = $d\n    return self"},
    {"has_default_$f(self)", "return self.$f == $d"},
    {"swap_$f(self, value: $t)", "old = self.$f\n    self.$f = value\n    return old"},
    {"show_$f(self)", "return \"$f is $t \" + text(self.$f)"},
    {"check_$f(self)", "if self.$f == $d:\n      return false\n    return type(self.$f) == $t"},
    {"copy_$f(self, other)", "check(other.$f, $t)\n    other.$f = self.$f\n    return other"},
};

std::string Fill(std::string_view pattern, const CodeField& field) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '$') {
      text += pattern[i];
      continue;
    }
    const char letter = pattern[++i];
    text += letter == 'f' ? field.name : letter == 't' ? field.type : field.initial;
  }
  return text;
}

std::string DrawDefault(std::string_view type, Random& rng) {
  if (type == "int") return std::to_string(rng.Below(100));
  if (type == "text") return fmt::format("\"{}\"", Pick(Colours(), rng));
  if (type == "bool") return rng.Below(2) == 0 ? "true" : "false";
  return fmt::format("{}.{}", rng.Below(10), rng.Below(10));
}

CodeField DrawField(Random& rng) {
  CodeField field;
  field.name = fmt::format("{}_{}", Pick(Adjectives(), rng), Pick(Nouns(), rng));
  field.type = Pick(FieldTypes(), rng);
  field.initial = DrawDefault(field.type, rng);
  return field;
}

// Fields of different names, each of whose functions keeps to the split.
class FieldSource {
 public:
  FieldSource(TaskSplit split, const Pattern& pattern, Random rng)
      : split_(split), pattern_(pattern), rng_(rng) {}

  CodeField Draw() {
    CodeField field;
    do {
      field = DrawFor(
          split_, [&] { return DrawField(rng_); },
          [&](const CodeField& f) { return Fill(pattern_.header, f) + Fill(pattern_.body, f); });
    } while (!names_.insert(field.name).second);
    return field;
  }

 private:
  TaskSplit split_;
  const Pattern& pattern_;
  Random rng_;
  std::set<std::string> names_;
};

TaskExample GenerateCode(const TaskRequest& request) {
  Random rng = request.Stream(0);
  const Pattern& pattern = kPatterns[rng.Below(std::size(kPatterns))];
  const std::string_view class_name = Pick(Animals(), rng);
  FieldSource source(request.split, pattern, request.Stream(1));
  std::vector<CodeField> fields;
  // Beyond some hundred fields the names of a split would run out.
  return FitLength(request, {.min = 2, .max = 400, .tokens = 45}, [&](int n_fields) {
    while (static_cast<int>(fields.size()) < n_fields) fields.push_back(source.Draw());
    TaskExample example{.prompt = fmt::format("class {}:\n", class_name), .stop = "\n\n"};
    std::vector<const CodeField*> order;
    for (int i = 0; i < n_fields; ++i) {
      const CodeField& field = fields[i];
      example.prompt += fmt::format("  {}: {} = {}\n", field.name, field.type, field.initial);
      order.push_back(&field);
    }
    Random shuffle = request.Stream(2);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[shuffle.Below(i)]);
    for (size_t i = 0; i < order.size(); ++i) {
      example.prompt +=
          fmt::format("{}\n  def {}:", i == 0 ? "" : "\n", Fill(pattern.header, *order[i]));
      example.references = {"\n    " + Fill(pattern.body, *order[i])};
      if (i + 1 < order.size()) example.prompt += example.references[0];
    }
    return example;
  });
}

}  // namespace

TaskDefinition CodeTask() {
  return {.name = "code",
          .description = "write the last function of a class whose functions follow a pattern",
          .metric = TaskMetric::kEditSimilarity,
          .chance = 0.345,  // another example's answer, measured by the test
          .default_length = 400,
          .min_length = 200,
          .generate = GenerateCode};
}

}  // namespace kvlathe

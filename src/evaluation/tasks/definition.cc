#include "evaluation/tasks/definition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kvlathe {
namespace {

// FNV-1a, whose value is the same on every machine.
uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return MixBits(hash);
}

class BuiltInTask final : public Task {
 public:
  explicit BuiltInTask(TaskDefinition definition, std::string name = "",
                       std::string parameters = "")
      : definition_(std::move(definition)),
        name_(name.empty() ? std::string(definition_.name) : std::move(name)),
        parameters_(std::move(parameters)) {}

  std::string_view name() const override { return name_; }
  std::string_view parameters() const override { return parameters_; }
  std::string_view description() const override { return definition_.description; }
  TaskMetric metric() const override { return definition_.metric; }
  double chance() const override { return definition_.chance; }
  int default_length() const override { return definition_.default_length; }
  int min_length() const override { return definition_.min_length; }

  StatusOr<TaskExample> Generate(const TaskOptions& options, uint64_t index,
                                 const TokenCounter& count_tokens) const override {
    const int length = options.length == 0 ? default_length() : options.length;
    if (length < min_length()) {
      return Error(StatusCode::kInvalidArgument, "task {}: length {} is below {}, its shortest",
                   name(), length, min_length());
    }
    // Without parameters: what they leave alone is the same whatever they are.
    uint64_t key = MixBits(HashOf(definition_.name) ^ MixBits(options.seed));
    key = MixBits(key ^ MixBits(index * 2 + (options.split == TaskSplit::kTest)));
    return definition_.generate({options.split, length, key, count_tokens});
  }

 private:
  TaskDefinition definition_;
  std::string name_, parameters_;
};

}  // namespace

bool BelongsTo(TaskSplit split, std::string_view content) {
  return (HashOf(content) % 8 == 0) == (split == TaskSplit::kTest);
}

std::shared_ptr<const Task> ToTask(TaskDefinition definition, const std::string& name,
                                   const std::string& parameters) {
  return std::make_shared<BuiltInTask>(std::move(definition), name, parameters);
}

const std::string& CanonicalAnswer(const TaskExample& example) {
  return example.whole_answer.empty() ? example.references[0] : example.whole_answer;
}

void AppendAnswer(std::string_view after, TaskExample& example) {
  const std::string& answer = example.references[0];
  const size_t begin = example.prompt.size();
  example.earlier_answers.push_back({begin, begin + answer.size()});
  (example.prompt += answer) += after;
}

TaskExample FitLength(const TaskRequest& request, const UnitRange& range,
                      const std::function<TaskExample(int)>& build) {
  const auto tokens_of = [&](const TaskExample& example) {
    return request.count_tokens(example.prompt + CanonicalAnswer(example));
  };
  // A unit takes at least one token, whatever the counter says.
  const int max = std::max(range.min, std::min(range.max, request.length));
  TaskExample best;
  int best_n = range.min - 1,
      excess_n = max + 1;  // the longest that fits, the shortest that does not
  int last_n = -1, last_tokens = 0;
  double rate = range.tokens;
  int n = std::clamp(request.length / range.tokens, range.min, max);
  while (true) {
    TaskExample example = build(n);
    const int tokens = tokens_of(example);
    const bool measured = last_n >= 0;
    if (measured) rate = std::max(1.0, static_cast<double>(tokens - last_tokens) / (n - last_n));
    last_n = n;
    last_tokens = tokens;
    const int room = request.length - tokens;
    if (room >= 0) {
      best = std::move(example);
      best_n = n;
      // What one more unit takes at most; unknown as long as there is none.
      const double next = measured ? rate : n > 0 ? std::min<double>(rate, tokens / n) : 0;
      if (room < next) break;
    } else {
      excess_n = n;
      if (n == range.min) return example;
    }
    if (excess_n - best_n <= 1) break;
    const double guess = n + std::floor(room / rate);
    n = static_cast<int>(std::clamp<double>(guess, best_n + 1, excess_n - 1));
  }
  return best;
}

std::span<const Task* const> BuiltInTasks() {
  static const std::array<BuiltInTask, 10> tasks = {
      BuiltInTask(PasskeyTask()),    BuiltInTask(RecallTask()),  BuiltInTask(MultihopTask()),
      BuiltInTask(ArithmeticTask()), BuiltInTask(SortTask()),    BuiltInTask(CopyTask()),
      BuiltInTask(ClassifyTask()),   BuiltInTask(SummaryTask()), BuiltInTask(CodeTask()),
      BuiltInTask(RulesTask())};
  static const std::array<const Task*, 10> pointers = [] {
    std::array<const Task*, 10> result;
    std::transform(tasks.begin(), tasks.end(), result.begin(), [](const Task& t) { return &t; });
    return result;
  }();
  return pointers;
}

StatusOr<const Task*> FindTask(std::string_view name) {
  std::string names;
  for (const Task* task : BuiltInTasks()) {
    if (task->name() == name) return task;
    names += names.empty() ? "" : ", ";
    names += task->name();
  }
  return Error(StatusCode::kInvalidArgument, "no task '{}'; there are {}", name, names);
}

}  // namespace kvlathe

#include <algorithm>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/prose.h"

namespace kvlathe {
namespace {

std::string DrawPoint(TaskSplit split, Random& rng) {
  return DrawFor(
      split,
      [&] {
        std::string sentence;
        AppendSentence(ProseStyle::kPlain, rng, sentence);
        return sentence;
      },
      [](const std::string& sentence) { return sentence; });
}

TaskExample GenerateSummary(const TaskRequest& request) {
  Random rng = request.Stream(0);
  const int n_paragraphs = std::clamp(request.length / 120, 2, 10);
  std::vector<std::string> points;
  std::vector<double> depths;
  std::string answer;
  for (int i = 0; i < n_paragraphs; ++i) {
    points.push_back(DrawPoint(request.split, rng));
    depths.push_back(rng.Uniform());
    answer += " " + points.back();
  }
  return FitLength(request, {.tokens = 14}, [&](int n_sentences) {
    Random prose = request.Stream(1);
    TaskExample example{.references = {answer}, .stop = "\n\n"};
    std::string& text = example.prompt;
    for (int i = 0; i < n_paragraphs; ++i) {
      // The first paragraphs are one sentence longer where the number does not divide.
      const int n_here = n_sentences / n_paragraphs + (i < n_sentences % n_paragraphs);
      const int n_before = static_cast<int>(depths[i] * (n_here + 1));
      AppendSentences(ProseStyle::kPlain, n_before, prose, text);
      text += "the main point is that " + points[i] + " ";
      AppendSentences(ProseStyle::kPlain, n_here - n_before, prose, text);
      text.back() = '\n';
    }
    text += "summary :";
    return example;
  });
}

}  // namespace

TaskDefinition SummaryTask() {
  return {.name = "summary",
          .description = "repeat the main point of each paragraph in order",
          .metric = TaskMetric::kRouge1,
          .chance = 0.325,  // another example's answer, measured by the test
          .default_length = 600,
          .min_length = 150,
          .generate = GenerateSummary};
}

}  // namespace kvlathe

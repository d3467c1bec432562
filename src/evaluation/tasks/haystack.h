// A haystack is the text in which tasks hide sentences.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "evaluation/tasks/definition.h"

namespace kvlathe {

class Haystack {
 public:
  // Prose from templates, another for every example.
  Haystack() = default;
  // The sentences of a text; a blank line ends one as well. kInvalidArgument when it has none.
  static StatusOr<Haystack> FromText(const std::string& text);

  bool is_text() const { return !sentences_.empty(); }
  // The first n sentences of one example: of a text from a place that the example draws, the
  // beginning after the end as often as it takes.
  std::vector<std::string> Draw(const TaskRequest& request, uint64_t stream, int n) const;

 private:
  std::vector<std::string> sentences_;
};

// A sentence to hide and where: 0 before all others, 1 behind them.
struct HiddenSentence {
  std::string text;
  double depth;
};

// All sentences with a space between them. Hidden ones of the same place stand in their order.
std::string Hide(std::vector<HiddenSentence> hidden, const std::vector<std::string>& sentences);

}  // namespace kvlathe

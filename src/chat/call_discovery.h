// Finds how a template writes calls, by rendering some of known names and arguments and looking
// where these stand.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/reading/answer_format.h"
#include "chat/template_traits.h"

namespace kvlathe {

// Renders answers to a question.
class AnswerProber {
 public:
  AnswerProber(const TemplateProber& prober, const TemplateTraits& traits)
      : prober_(prober), traits_(traits) {}

  // What `answer`, a message, adds behind the question and what opens an answer. Nothing: it is not
  // rendered.
  std::optional<std::string> Added(const nlohmann::ordered_json& answer,
                                   const nlohmann::ordered_json& tools,
                                   const nlohmann::ordered_json& arguments = nullptr) const;
  // The same with what opens the answer.
  std::optional<std::string> AddedWhole(const nlohmann::ordered_json& answer,
                                        const nlohmann::ordered_json& tools,
                                        const nlohmann::ordered_json& arguments = nullptr) const;
  // All that is rendered in front of `part`, which the answer has.
  std::string TextBefore(std::string_view part, const nlohmann::ordered_json& answer,
                         const nlohmann::ordered_json& tools,
                         const nlohmann::ordered_json& arguments) const;
  // What opens an answer.
  std::string Opening() const;

  const TemplateProber& prober() const { return prober_; }
  const TemplateTraits& traits() const { return traits_; }

 private:
  const TemplateProber& prober_;
  const TemplateTraits& traits_;
};

// How many of n bytes at the beginning of `text` end in no mark, of those that begin there.
size_t WholeMarks(std::string_view text, size_t n);

// The two tools whose calls are looked at.
nlohmann::ordered_json ProbeTools();
// A message with the first n_calls probes of a call.
nlohmann::ordered_json ProbeCallsAnswer(const TemplateTraits& traits, int n_calls);
// Where the arguments of its first call end in a text that holds it.
size_t EndOfProbeCall(std::string_view text);

// Fills in the calls of `format`, of which the rest is known, or why there are none. `tail` is what
// follows the text of an answer.
void FindCalls(const AnswerProber& prober, const std::string& tail, AnswerFormat* format);

// Thoughts without a word, which some templates put in front of every answer, are dropped.
void DropEmptyThoughts(const std::optional<ThoughtFormat>& thoughts, std::string* text);

}  // namespace kvlathe

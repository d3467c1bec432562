#include "chat/answer_discovery.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/call_discovery.h"
#include "chat/call_place.h"
#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAnswer = "kvl-answer";
constexpr const char* kThoughts = "kvl-thoughts";
constexpr const char* kNextQuestion = "kvl-next";

class Discovery {
 public:
  Discovery(const TemplateProber& prober, const TemplateTraits& traits)
      : prober_(prober, traits), traits_(traits) {}

  AnswerFormat Find() {
    FindText();
    FindThoughts();
    FindEnds();
    FindCalls(prober_, tail_, &found_);
    return std::move(found_);
  }

 private:
  Json Answer() const {
    return {{"role", "assistant"}, {"content", ProbeContent(traits_, kAnswer)}};
  }

  void FindText() {
    auto text = prober_.Added(Answer(), nullptr);
    if (!text) text = prober_.Added(Answer(), ProbeTools());
    if (!text) return;
    const Span answer = kvlathe::Find(*text, kAnswer, 0);
    if (!answer.found()) return;
    before_answer_ = text->substr(0, answer.begin);
    tail_ = text->substr(answer.end);
    has_text_ = true;
  }

  void FindThoughts() {
    opening_ = prober_.Opening();
    if (!traits_.thoughts_field.empty()) {
      LookForThoughts(Answer(), nullptr, nullptr);
      LookForThoughts(Answer(), nullptr, {{"enable_thinking", true}});
      if (traits_.takes_calls) {
        LookForThoughts(ProbeCallsAnswer(traits_, 1), ProbeTools(), nullptr);
      }
    }
    const std::string_view opening_end = TrimBlanks(opening_);
    const bool opens_thoughts = opening_end.ends_with("<think>");
    if (!found_.thoughts &&
        (opens_thoughts || before_answer_.find("</think>") != std::string::npos ||
         prober_.prober().source().find("</think>") != std::string::npos)) {
      found_.thoughts = ThoughtFormat{"<think>", "</think>"};
    }
    found_.text_begin = before_answer_;
    if (!found_.thoughts) return;
    const std::string_view mark = TrimBlanks(found_.thoughts->begin);
    found_.thoughts->is_open = !mark.empty() && opening_end.ends_with(mark);
    DropEmptyThoughts(found_.thoughts, &found_.text_begin);
  }

  // By an answer with thoughts and the same one without.
  void LookForThoughts(Json answer, const Json& tools, const Json& arguments) {
    if (found_.thoughts) return;
    const auto plain = prober_.AddedWhole(answer, tools, arguments);
    answer[traits_.thoughts_field] = kThoughts;
    const auto text = prober_.AddedWhole(answer, tools, arguments);
    const auto opened = prober_.Added(answer, tools, arguments);
    if (!text || !plain || !opened) return;
    const Span thoughts = kvlathe::Find(*text, kThoughts, 0);
    if (!thoughts.found()) return;
    std::string_view behind = std::string_view(*text).substr(thoughts.end);
    const size_t at_answer = behind.find(kAnswer);
    std::string end(behind.substr(0, at_answer != std::string_view::npos
                                         ? at_answer
                                         : behind.size() - CommonSuffix(behind, *plain)));
    const std::string_view text_begin = TrimBlanks(before_answer_);
    if (!text_begin.empty() && TrimBlanks(end).ends_with(text_begin) &&
        TrimBlanks(end) != text_begin) {
      end.erase(end.rfind(text_begin));
    }
    if (TrimBlanks(end).empty()) end = FirstMark(behind);  // thoughts without a word have it too
    if (TrimBlanks(end).empty()) return;
    const size_t begin = opened->find(kThoughts);
    std::string begin_of_thoughts =
        BeginOfThoughts(begin == std::string::npos ? "" : opened->substr(0, begin),
                        text->substr(0, thoughts.begin), *plain, TrimBlanks(end));
    // What opens thoughts opens every answer: the last mark of it is theirs.
    if (begin_of_thoughts.empty()) {
      begin_of_thoughts = LastMark(prober_.TextBefore(kThoughts, answer, tools, arguments));
    }
    if (!begin_of_thoughts.empty()) found_.thoughts = ThoughtFormat{begin_of_thoughts, end};
  }

  // `written` stands in front of thoughts behind what opens an answer, `lead` with it.
  std::string BeginOfThoughts(const std::string& written, const std::string& lead,
                              const std::string& plain, std::string_view end) const {
    if (!TrimBlanks(written).empty()) return written;
    if (end == "</think>") return "<think>";
    const std::string more = lead.substr(WholeMarks(lead, CommonPrefix(lead, plain)));
    if (!TrimBlanks(more).empty()) return more;
    const std::string_view opening = TrimBlanks(opening_), header = TrimBlanks(lead);
    if (opening.size() > header.size() && opening.starts_with(header)) {
      const std::string_view rest = TrimBlanks(opening.substr(header.size()));
      if (!rest.starts_with(end)) return std::string(rest);
    }
    return "";
  }

  // "<a>" of "...<a>", and "<a>b<c>" too.
  static std::string LastMark(const std::string& text) {
    size_t mark = text.rfind('<');
    while (mark != std::string::npos && mark > 0 && text[mark - 1] != '>' &&
           std::string_view(" \t\r\n").find(text[mark - 1]) == std::string_view::npos) {
      mark = text.rfind('<', mark - 1);
    }
    return mark == std::string::npos ? "" : text.substr(mark);
  }

  // What ends an answer is the first mark behind its text that stands nowhere within answers.
  void FindEnds() {
    if (!has_text_) return;
    const size_t first = tail_.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return FindEndOfTurn();
    if (tail_[first] != '<' && tail_[first] != '[') {
      found_.ends.push_back(FirstMark(tail_));
      return;
    }
    const std::string within = Within();
    for (size_t pos = first; pos < tail_.size(); pos = tail_.find_first_of("<[", pos + 1)) {
      const std::string mark = FirstMark(std::string_view(tail_).substr(pos));
      if (within.find(mark) != std::string::npos) continue;
      found_.ends.push_back(mark);
      found_.text_end = TrimBlanks(std::string_view(tail_).substr(0, pos));
      return;
    }
    found_.text_end = TrimBlanks(tail_);
  }

  // Thoughts and a call, with what stands in front of them.
  std::string Within() const {
    std::string within = found_.text_begin;
    if (found_.thoughts) within += found_.thoughts->begin + found_.thoughts->end;
    const auto call = prober_.Added(ProbeCallsAnswer(traits_, 1), ProbeTools());
    return call ? within + call->substr(0, EndOfProbeCall(*call)) : within;
  }

  // Nothing follows the last answer: what follows others.
  void FindEndOfTurn() {
    Json next = ProbeQuestion(traits_);
    next["content"] = ProbeContent(traits_, kNextQuestion);
    const auto longer = prober_.prober().Render(
        {.messages = Json::array({ProbeQuestion(traits_), Answer(), next})});
    if (!longer) return;
    const size_t begin = longer->rfind(kAnswer), end = longer->rfind(kNextQuestion);
    if (begin == std::string::npos || end == std::string::npos || begin > end) return;
    const size_t from = begin + std::string_view(kAnswer).size();
    const std::string between = longer->substr(from, end - from);
    const std::string_view behind = TrimBlanks(between);
    if (behind.empty()) return;
    if (behind.front() == '<' || behind.front() == '[') {
      found_.ends.push_back(FirstMark(behind));
      return;
    }
    // Words that begin a turn of the user: on a line of their own, as users write them too.
    const bool is_line = between.find('\n') < between.find(behind);
    found_.ends.push_back((is_line ? "\n" : "") + std::string(behind));
  }

  const AnswerProber prober_;
  const TemplateTraits& traits_;
  AnswerFormat found_;
  std::string before_answer_, tail_, opening_;
  bool has_text_ = false;
};

}  // namespace

AnswerFormat FindAnswerFormat(const TemplateProber& prober, const TemplateTraits& traits) {
  return Discovery(prober, traits).Find();
}

}  // namespace kvlathe

#include "chat/answer_discovery.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/call_place.h"
#include "chat/call_readers.h"
#include "chat/marked_arguments.h"
#include "chat/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAnswer = "kvl-answer";
constexpr const char* kThoughts = "kvl-thoughts";
constexpr const char* kNextQuestion = "kvl-next";
constexpr std::array<const char*, 2> kNames = {"kvl_first", "kvl_second"};
constexpr std::array<const char*, 2> kCities = {"kvl-city", "kvl-town"};
constexpr std::array<const char*, 2> kIds = {"kvlcall01", "kvlcall02"};
constexpr std::array<int, 2> kDays = {41, 52};

// A header that answers and the prompt share must not end in the middle of a mark.
size_t WholeMarks(std::string_view text, size_t n) {
  const size_t open = text.substr(0, n).find_last_of("<[");
  if (open == std::string_view::npos) return n;
  const char close = text[open] == '<' ? '>' : ']';
  return text.substr(open, n - open).find(close) == std::string_view::npos ? open : n;
}

class Discovery {
 public:
  Discovery(const TemplateProber& prober, const TemplateTraits& traits)
      : prober_(prober), traits_(traits) {}

  AnswerFormat Find() {
    FindText();
    FindThoughts();
    FindCalls();
    return std::move(found_);
  }

 private:
  Json Answer() const {
    return {{"role", "assistant"}, {"content", ProbeContent(traits_, kAnswer)}};
  }
  Json Tools() const { return Json::array({ProbeTool(kNames[0]), ProbeTool(kNames[1])}); }
  std::string IdOf(int i) const {
    if (!traits_.ids_hold_names) return kIds[i];
    return std::string("functions.") + kNames[i] + ":" + std::to_string(i);
  }
  SentCall Sent(int i) const {
    return {traits_.ids_hold_names ? IdOf(i) : std::string(kNames[i]), kCities[i], kDays[i]};
  }
  std::vector<ProbeCall> Calls(int n_calls) const {
    std::vector<ProbeCall> calls;
    for (int i = 0; i < n_calls; ++i) {
      calls.push_back({kNames[i], {{"city", kCities[i]}, {"days", kDays[i]}}, IdOf(i)});
    }
    return calls;
  }

  // What `answer` adds behind the question and what opens an answer. Nothing: it is not rendered.
  std::optional<std::string> AnswerText(const Json& answer, const Json& tools) const {
    const Json question = ProbeQuestion(traits_);
    const auto text = prober_.Render({.messages = Json::array({question, answer}), .tools = tools});
    const auto asked = prober_.Render({.messages = Json::array({question}), .tools = tools});
    const auto opened =
        prober_.Render({.messages = Json::array({question}), .tools = tools, .opens_answer = true});
    if (!text || !asked || !opened) return std::nullopt;
    size_t begin = WholeMarks(*text, CommonPrefix(*text, *asked));
    const std::string_view opening = std::string_view(*opened).substr(
        std::min(begin, WholeMarks(*opened, CommonPrefix(*text, *opened))));
    const std::string_view rest = std::string_view(*text).substr(begin);
    begin += WholeMarks(rest, CommonPrefix(rest, opening));
    return text->substr(begin);
  }

  std::string Opening() const {
    const auto asked = prober_.Render({.messages = Json::array({ProbeQuestion(traits_)})});
    const auto opened =
        prober_.Render({.messages = Json::array({ProbeQuestion(traits_)}), .opens_answer = true});
    if (!asked || !opened) return "";
    return opened->substr(CommonPrefix(*asked, *opened));
  }

  void FindText() {
    auto text = AnswerText(Answer(), nullptr);
    if (!text) text = AnswerText(Answer(), Tools());
    if (!text) return;
    const Span answer = kvlathe::Find(*text, kAnswer, 0);
    if (!answer.found()) return;
    before_answer_ = text->substr(0, answer.begin);
    tail_ = text->substr(answer.end);
    std::string_view behind = TrimBlanks(tail_);
    std::string between;
    if (behind.empty()) {
      Json next = ProbeQuestion(traits_);
      next["content"] = ProbeContent(traits_, kNextQuestion);
      const auto longer =
          prober_.Render({.messages = Json::array({ProbeQuestion(traits_), Answer(), next})});
      if (!longer) return;
      const size_t begin = longer->rfind(kAnswer), end = longer->rfind(kNextQuestion);
      if (begin == std::string::npos || end == std::string::npos || begin > end) return;
      between = longer->substr(begin + std::string_view(kAnswer).size(),
                               end - begin - std::string_view(kAnswer).size());
      behind = TrimBlanks(between);
      if (behind.empty()) return;
      if (behind.front() != '<' && behind.front() != '[') {
        // Words that begin a turn of the user: on a line of their own, as users write them too.
        const bool is_line = between.find('\n') < between.find(behind);
        found_.ends.push_back((is_line ? "\n" : "") + std::string(behind));
        return;
      }
    }
    found_.ends.push_back(FirstMark(behind));
  }

  void FindThoughts() {
    const std::string opening = Opening();
    const std::string_view opening_end = TrimBlanks(opening);
    if (!traits_.thoughts_field.empty()) {
      Json answer = Answer();
      answer[traits_.thoughts_field] = kThoughts;
      const auto text = AnswerText(answer, nullptr);
      if (text) ReadThoughts(*text);
    }
    const bool opens_thoughts = opening_end.ends_with("<think>");
    if (!found_.thoughts &&
        (opens_thoughts || before_answer_.find("</think>") != std::string::npos ||
         prober_.source().find("</think>") != std::string::npos)) {
      found_.thoughts = ThoughtFormat{"<think>", "</think>"};
    }
    found_.text_begin = before_answer_;
    if (!found_.thoughts) return;
    const std::string_view mark = TrimBlanks(found_.thoughts->begin);
    found_.thoughts->is_open = !mark.empty() && opening_end.ends_with(mark);
    DropEmptyThoughts(&found_.text_begin);
  }

  void ReadThoughts(const std::string& text) {
    const Span thoughts = kvlathe::Find(text, kThoughts, 0);
    const Span answer = kvlathe::Find(text, kAnswer, thoughts.found() ? thoughts.end : 0);
    if (!thoughts.found() || !answer.found()) return;
    std::string begin = text.substr(0, thoughts.begin);
    std::string between = text.substr(thoughts.end, answer.begin - thoughts.end);
    const std::string_view text_begin = TrimBlanks(before_answer_);
    if (!text_begin.empty() && TrimBlanks(between).ends_with(text_begin) &&
        TrimBlanks(between) != text_begin) {
      between.erase(between.rfind(text_begin));
    }
    if (TrimBlanks(begin).empty() && TrimBlanks(between) == "</think>") begin = "<think>";
    if (TrimBlanks(begin).empty() || TrimBlanks(between).empty()) return;
    found_.thoughts = ThoughtFormat{begin, between};
  }

  // Thoughts without a word, which some templates put in front of every answer.
  void DropEmptyThoughts(std::string* text) const {
    if (!found_.thoughts) return;
    const LooseMatch begin = MatchLoosely(*text, TrimBlanks(found_.thoughts->begin));
    const std::string_view rest = std::string_view(*text).substr(begin.end);
    const LooseMatch end = MatchLoosely(rest, TrimBlanks(found_.thoughts->end));
    if (end.state != LooseMatch::State::kWhole) return;
    if (begin.state == LooseMatch::State::kNone && TrimBlanks(found_.thoughts->end) != "</think>")
      return;
    text->erase(0, begin.end + end.end);
    text->erase(0, std::min(text->find_first_not_of(" \t\r\n"), text->size()));
  }

  void FindCalls() {
    if (!traits_.takes_calls) {
      found_.why_no_calls = "it prints no calls";
      return;
    }
    found_.why_no_calls = "how it writes calls cannot be told";
    auto one = AnswerText(ProbeAnswer(traits_, Calls(1)), Tools());
    auto two = AnswerText(ProbeAnswer(traits_, Calls(2)), Tools());
    if (!one) return;
    DropEmptyThoughts(&*one);
    if (two) DropEmptyThoughts(&*two);
    const std::optional<CallPlace> first = FindCallPlace(*one, 0, Sent(0));
    if (!first) return;
    CallFormat format = first->format;
    format.ids_hold_names = traits_.ids_hold_names || first->format.ids_hold_names;
    const Span call = CallOf(*first);
    const std::string before = one->substr(0, call.begin);
    std::string behind = one->substr(call.end);
    if (first->name.begin < first->arguments.begin) {
      format.name_end = one->substr(first->name.end, first->arguments.begin - first->name.end);
    }
    CutTail(&behind);
    const auto places = two ? TwoPlaces(*two) : std::nullopt;
    if (places) {
      Split(*two, *places, before, behind, &format);
    } else {
      format.is_one_call = true;
      format.call_begin = before;
      format.call_end = behind;
    }
    AddObject(*one, *first, &format);
    for (std::string* const text : {&format.section_begin, &format.section_end, &format.call_begin,
                                    &format.name_end, &format.call_end, &format.between}) {
      for (const char* const id : kIds) AnyId(id, text);
    }
    if (!format.is_object && TrimBlanks(format.section_begin + format.call_begin).empty()) return;
    FinishTagged(*one, *first, &format);
    if (ReadsBack(*one, format, 1) && (!places || ReadsBack(*two, format, 2))) {
      found_.calls = std::move(format);
      found_.why_no_calls.clear();
    }
  }

  void CutTail(std::string* behind) const {
    const std::string_view tail = TrimBlanks(tail_);
    const size_t pos = tail.empty() ? std::string::npos : behind->rfind(tail);
    if (pos != std::string::npos) {
      behind->erase(pos);
      return;
    }
    for (const std::string& end : found_.ends) {
      const size_t at = behind->find(end);
      if (at != std::string::npos && at > 0) behind->erase(at);
    }
  }

  std::optional<std::pair<CallPlace, CallPlace>> TwoPlaces(const std::string& text) const {
    const auto first = FindCallPlace(text, 0, Sent(0));
    if (!first) return std::nullopt;
    const auto second = FindCallPlace(text, first->arguments.end, Sent(1));
    if (!second || second->name.begin < first->arguments.end) return std::nullopt;
    return std::pair(*first, *second);
  }

  // Of a call that is an object all of it, otherwise from its name to the end of its arguments.
  static Span CallOf(const CallPlace& place) {
    if (place.format.is_object) return place.object;
    return {place.name.begin, place.arguments.end};
  }

  // What of the object stands in front of the name and behind the arguments, where they are in this
  // order.
  static void AddObject(const std::string& one, const CallPlace& place, CallFormat* format) {
    if (!format->is_object) return;
    if (format->name_end.empty()) {
      format->call_begin += "{";
      return;
    }
    format->call_begin += one.substr(place.object.begin, place.name.begin - place.object.begin);
    format->call_end =
        one.substr(place.arguments.end, place.object.end - place.arguments.end) + format->call_end;
  }

  // Ids are any word.
  static void AnyId(const std::string& id, std::string* text) {
    for (size_t pos = text->find(id); pos != std::string::npos; pos = text->find(id)) {
      text->replace(pos, id.size(), 1, kAnyWord);
    }
  }

  static void Split(const std::string& two, const std::pair<CallPlace, CallPlace>& places,
                    const std::string& before, const std::string& behind, CallFormat* format) {
    const size_t from = CallOf(places.first).end;
    std::string between = two.substr(from, CallOf(places.second).begin - from);
    for (const char* const id : kIds) AnyId(id, &between);
    std::string first_before = before, first_behind = behind;
    AnyId(kIds[0], &first_before);
    AnyId(kIds[0], &first_behind);
    const size_t n_begin = WholeSuffix(first_before, CommonSuffix(first_before, between));
    format->call_begin = first_before.substr(first_before.size() - n_begin);
    format->section_begin = first_before.substr(0, first_before.size() - n_begin);
    between.erase(between.size() - n_begin);
    const size_t n_end = WholePrefix(between, CommonPrefix(between, first_behind));
    format->call_end = first_behind.substr(0, n_end);
    format->section_end = first_behind.substr(n_end);
    format->between = between.substr(n_end);
  }

  // What follows the last value tells where a value ends and where all of them do.
  static void FinishTagged(const std::string& one, const CallPlace& place, CallFormat* format) {
    if (format->arguments != CallFormat::Arguments::kTagged) return;
    const std::string_view behind = std::string_view(one).substr(place.arguments.end);
    const size_t n = CommonPrefix(format->value_end, behind);
    format->between_arguments = format->value_end.substr(n);
    format->value_end.erase(n);
    if (format->call_end.starts_with(format->value_end)) {
      format->call_end.erase(0, format->value_end.size());
    }
  }

  // Whether the reader makes of the text what it was rendered of.
  bool ReadsBack(const std::string& text, const CallFormat& format, int n_calls) const {
    AnswerFormat alone;
    alone.calls = format;
    ToolSchemas schemas;
    for (const char* const name : kNames) {
      schemas[name] = ProbeTool(name)["function"]["parameters"];
    }
    const auto reader = MakeAnswerReader(alone, std::move(schemas));
    std::vector<std::pair<std::string, std::string>> calls;
    const auto take = [&](const AnswerDelta& delta) {
      for (const AnswerDelta::Call& call : delta.calls) {
        if (!call.name.empty()) calls.push_back({call.name, ""});
        if (!calls.empty()) calls.back().second += call.arguments;
      }
    };
    take(reader->Push(text));
    take(reader->Finish());
    if (static_cast<int>(calls.size()) != n_calls) return false;
    for (int i = 0; i < n_calls; ++i) {
      const auto json = nlohmann::json::parse(calls[i].second, nullptr, false);
      if (calls[i].first != kNames[i]) return false;
      if (!(json == nlohmann::json{{"city", kCities[i]}, {"days", kDays[i]}})) return false;
    }
    return true;
  }

  const TemplateProber& prober_;
  const TemplateTraits& traits_;
  AnswerFormat found_;
  std::string before_answer_, tail_;
};

}  // namespace

AnswerFormat FindAnswerFormat(const TemplateProber& prober, const TemplateTraits& traits) {
  return Discovery(prober, traits).Find();
}

}  // namespace kvlathe

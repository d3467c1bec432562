#include "chat/call_discovery.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "chat/call_place.h"
#include "chat/reading/call_readers.h"
#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 2> kNames = {"kvl_first", "kvl_second"};
constexpr std::array<const char*, 2> kCities = {"kvl-city", "kvl-town"};
constexpr std::array<const char*, 2> kIds = {"kvlcall01", "kvlcall02"};
constexpr std::array<int, 2> kDays = {41, 52};

std::string IdOf(const TemplateTraits& traits, int i) {
  if (!traits.ids_hold_names) return kIds[i];
  return std::string("functions.") + kNames[i] + ":" + std::to_string(i);
}

Json ArgumentsOf(int i) { return {{"city", kCities[i]}, {"days", kDays[i]}}; }

// Values that are hard to tell from the marks around them.
Json OddArguments() {
  return {{"city", "a \"b\"\n\t'c' {d}: <e>, f=[1]\\ é"}, {"days", {1.5, {{"g", "h, {i}"}}}}};
}

SentCall Sent(const TemplateTraits& traits, int i) {
  return {traits.ids_hold_names ? IdOf(traits, i) : std::string(kNames[i]), kCities[i], kDays[i]};
}

void ReplaceWord(std::string_view word, char by, std::string* text) {
  for (size_t pos = text->find(word); pos != std::string::npos; pos = text->find(word)) {
    text->replace(pos, word.size(), 1, by);
  }
}

// Ids are any word, and so is a number that differs from that of another call.
void AnyId(std::string* text) {
  for (const char* const id : kIds) ReplaceWord(id, kAnyWord, text);
  for (const char* const name : kNames) ReplaceWord(name, kCalledName, text);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string AnyNumber(const std::string& text, const std::string& other) {
  const size_t begin = CommonPrefix(text, other);
  const size_t end =
      std::min({CommonSuffix(text, other), text.size() - begin, other.size() - begin});
  const std::string_view number = std::string_view(text).substr(begin, text.size() - begin - end);
  if (number.empty() || !std::ranges::all_of(number, IsDigit)) return text;
  return text.substr(0, begin) + kAnyWord + text.substr(text.size() - end);
}

class CallDiscovery {
 public:
  CallDiscovery(const AnswerProber& prober, const std::string& tail, const AnswerFormat& found)
      : prober_(prober), traits_(prober.traits()), tail_(tail), found_(found) {}

  // Nothing: it cannot be told.
  std::optional<CallFormat> Find() const {
    const auto one = Rendered(1), two = Rendered(2);
    if (!one) return std::nullopt;
    const std::optional<CallPlace> first = FindCallPlace(*one, 0, Sent(traits_, 0));
    if (!first) return std::nullopt;
    CallFormat format = first->format;
    format.ids_hold_names = traits_.ids_hold_names || first->format.ids_hold_names;
    format.texts_may_be_data = prober_.prober().source().find("CDATA") != std::string::npos;
    const Span call = CallOf(*first);
    const std::string before = one->substr(0, call.begin);
    std::string behind = one->substr(call.end);
    format.name_end = NameEnd(*one, *first);
    CutTail(&behind);
    const auto places = two ? TwoPlaces(*two) : std::nullopt;
    if (places) {
      Split(*two, *places, before, behind, &format);
    } else {
      format.is_one_call = true;
      format.call_begin = before;
      format.call_end = behind;
    }
    AddObject(*one, *first, places ? *two : *one, places ? places->second : *first, &format);
    for (std::string* const text : {&format.section_begin, &format.section_end, &format.call_begin,
                                    &format.name_end, &format.call_end, &format.between}) {
      AnyId(text);
    }
    // Without a mark in front of the first call there is one in front of others, or none at all.
    if (!format.is_object && TrimBlanks(format.section_begin + format.call_begin).empty() &&
        TrimBlanks(format.between).empty()) {
      return std::nullopt;
    }
    FinishTagged(*one, *first, &format);
    if (!ReadsBack(*one, format, 1) || (places && !ReadsBack(*two, format, 2))) return std::nullopt;
    return format;
  }

  // Whether what a call with odd texts is rendered to is read as that call or as no call.
  bool ReadsOddValues(const CallFormat& format) const {
    auto text = prober_.Added(ProbeAnswer(traits_, {{kNames[0], OddArguments(), IdOf(traits_, 0)}}),
                              ProbeTools());
    if (!text) return true;
    DropEmptyThoughts(found_.thoughts, &*text);
    const auto calls = Read(*text, format).calls;
    return calls.empty() || (calls.size() == 1 && calls[0].first == kNames[0] &&
                             calls[0].second == nlohmann::json(OddArguments()));
  }

 private:
  std::optional<std::string> Rendered(int n_calls) const {
    auto text = prober_.Added(ProbeCallsAnswer(traits_, n_calls), ProbeTools());
    if (text) DropEmptyThoughts(found_.thoughts, &*text);
    return text;
  }

  // What ends an answer belongs to no call.
  void CutTail(std::string* behind) const {
    for (const std::string& end : found_.ends) {
      const size_t at = behind->find(end);
      if (at == std::string::npos || at == 0) continue;
      behind->erase(at);
      return;
    }
    behind->erase(behind->size() - WholeSuffix(*behind, CommonSuffix(*behind, tail_)));
  }

  std::optional<std::pair<CallPlace, CallPlace>> TwoPlaces(const std::string& text) const {
    const auto first = FindCallPlace(text, 0, Sent(traits_, 0));
    if (!first) return std::nullopt;
    const auto second = FindCallPlace(text, first->arguments.end, Sent(traits_, 1));
    if (!second || second->name.begin < first->arguments.end) return std::nullopt;
    return std::pair(*first, *second);
  }

  // Of a call that is an object all of it, otherwise from its name to the end of its arguments.
  static Span CallOf(const CallPlace& place) {
    if (place.format.is_object) return place.object;
    return {place.name.begin, place.arguments.end};
  }

  static std::string NameEnd(const std::string& text, const CallPlace& place) {
    if (place.name.begin >= place.arguments.begin) return "";
    return text.substr(place.name.end, place.arguments.begin - place.name.end);
  }

  // What of the object stands in front of the name and behind the arguments, or the other way
  // round.
  static void AddObject(const std::string& one, const CallPlace& place, const std::string& two,
                        const CallPlace& second, CallFormat* format) {
    if (!format->is_object) return;
    const auto around = [](const std::string& text, const CallPlace& of) {
      const Span& begin = of.name.begin < of.arguments.begin ? of.name : of.arguments;
      const Span& end = of.name.begin < of.arguments.begin ? of.arguments : of.name;
      std::string before = text.substr(of.object.begin, begin.begin - of.object.begin);
      std::string behind = text.substr(end.end, of.object.end - end.end);
      AnyId(&before);
      AnyId(&behind);
      return std::pair(before, behind);
    };
    if (place.arguments.begin < place.name.begin) {
      format->between_arguments =
          one.substr(place.arguments.end, place.name.begin - place.arguments.end);
    }
    const auto first = around(one, place), other = around(two, second);
    format->call_begin += AnyNumber(first.first, other.first);
    format->call_end = AnyNumber(first.second, other.second) + format->call_end;
  }

  static void Split(const std::string& two, const std::pair<CallPlace, CallPlace>& places,
                    const std::string& before, const std::string& behind, CallFormat* format) {
    const size_t from = CallOf(places.first).end;
    std::string between = two.substr(from, CallOf(places.second).begin - from);
    std::string first_before = before, first_behind = behind;
    for (std::string* const text : {&between, &first_before, &first_behind}) AnyId(text);
    const size_t n_begin = WholeSuffix(first_before, CommonSuffix(first_before, between));
    format->call_begin = first_before.substr(first_before.size() - n_begin);
    format->section_begin = first_before.substr(0, first_before.size() - n_begin);
    between.erase(between.size() - n_begin);
    const size_t n_end = WholePrefix(between, CommonPrefix(between, first_behind));
    format->call_end = first_behind.substr(0, n_end);
    format->section_end = first_behind.substr(n_end);
    format->between = between.substr(n_end);
    std::string first = NameEnd(two, places.first), second = NameEnd(two, places.second);
    for (std::string* const text : {&first, &second}) AnyId(text);
    format->name_end = AnyNumber(first, second);
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

  struct ReadCalls {
    std::string content;
    std::vector<std::pair<std::string, nlohmann::json>> calls;
  };

  // Byte by byte.
  static ReadCalls Read(const std::string& text, const CallFormat& format) {
    AnswerFormat alone;
    alone.calls = format;
    ToolSchemas schemas;
    for (const char* const name : kNames) {
      schemas[name] = ProbeTool(name)["function"]["parameters"];
    }
    const auto reader = MakeAnswerReader(alone, std::move(schemas));
    ReadCalls read;
    std::vector<std::string> arguments;
    const auto take = [&](const AnswerDelta& delta) {
      read.content += delta.content;
      for (const AnswerDelta::Call& call : delta.calls) {
        if (!call.name.empty()) {
          read.calls.push_back({call.name, nullptr});
          arguments.emplace_back();
        }
        if (!arguments.empty()) arguments.back() += call.arguments;
      }
    };
    for (const char& c : text) take(reader->Push(std::string_view(&c, 1)));
    take(reader->Finish());
    for (size_t i = 0; i < arguments.size(); ++i) {
      read.calls[i].second = nlohmann::json::parse(arguments[i], nullptr, false);
    }
    return read;
  }

  // Whether the reader makes of the text what it was rendered of.
  bool ReadsBack(const std::string& text, const CallFormat& format, int n_calls) const {
    const ReadCalls read = Read(text, format);
    if (static_cast<int>(read.calls.size()) != n_calls) return false;
    for (int i = 0; i < n_calls; ++i) {
      if (read.calls[i].first != kNames[i]) return false;
      if (!(read.calls[i].second == nlohmann::json(ArgumentsOf(i)))) return false;
    }
    return true;
  }

  const AnswerProber& prober_;
  const TemplateTraits& traits_;
  const std::string& tail_;
  const AnswerFormat& found_;
};

}  // namespace

size_t WholeMarks(std::string_view text, size_t n) {
  const size_t open = text.substr(0, n).find_last_of("<[");
  if (open == std::string_view::npos) return n;
  const char close = text[open] == '<' ? '>' : ']';
  return text.substr(open, n - open).find(close) == std::string_view::npos ? open : n;
}

std::optional<std::string> AnswerProber::AddedWhole(const Json& answer, const Json& tools,
                                                    const Json& arguments) const {
  const Json question = ProbeQuestion(traits_);
  const auto text = prober_.Render(
      {.messages = Json::array({question, answer}), .tools = tools, .arguments = arguments});
  const auto asked =
      prober_.Render({.messages = Json::array({question}), .tools = tools, .arguments = arguments});
  if (!text || !asked) return std::nullopt;
  return text->substr(WholeMarks(*text, CommonPrefix(*text, *asked)));
}

std::optional<std::string> AnswerProber::Added(const Json& answer, const Json& tools,
                                               const Json& arguments) const {
  auto text = AddedWhole(answer, tools, arguments);
  const auto render = [&](bool opens_answer) {
    return prober_.Render({.messages = Json::array({ProbeQuestion(traits_)}),
                           .tools = tools,
                           .arguments = arguments,
                           .opens_answer = opens_answer});
  };
  const auto asked = render(false), opened = render(true);
  if (!text || !asked || !opened) return std::nullopt;
  const std::string_view opening =
      std::string_view(*opened).substr(WholeMarks(*opened, CommonPrefix(*asked, *opened)));
  return text->substr(WholeMarks(*text, CommonPrefix(*text, opening)));
}

std::string AnswerProber::TextBefore(std::string_view part, const Json& answer, const Json& tools,
                                     const Json& arguments) const {
  const auto text = prober_.Render({.messages = Json::array({ProbeQuestion(traits_), answer}),
                                    .tools = tools,
                                    .arguments = arguments});
  return text ? text->substr(0, std::min(text->find(part), text->size())) : "";
}

std::string AnswerProber::Opening() const {
  const auto asked = prober_.Render({.messages = Json::array({ProbeQuestion(traits_)})});
  const auto opened =
      prober_.Render({.messages = Json::array({ProbeQuestion(traits_)}), .opens_answer = true});
  if (!asked || !opened) return "";
  return opened->substr(CommonPrefix(*asked, *opened));
}

Json ProbeTools() { return Json::array({ProbeTool(kNames[0]), ProbeTool(kNames[1])}); }

Json ProbeCallsAnswer(const TemplateTraits& traits, int n_calls) {
  std::vector<ProbeCall> calls;
  for (int i = 0; i < n_calls; ++i) {
    calls.push_back({kNames[i], ArgumentsOf(i), IdOf(traits, i)});
  }
  return ProbeAnswer(traits, calls);
}

size_t EndOfProbeCall(std::string_view text) {
  const size_t days = text.rfind(std::to_string(kDays[0])), city = text.rfind(kCities[0]);
  if (days == std::string_view::npos || city == std::string_view::npos) return 0;
  return std::max(days, city);
}

void DropEmptyThoughts(const std::optional<ThoughtFormat>& thoughts, std::string* text) {
  if (!thoughts) return;
  const LooseMatch begin = MatchLoosely(*text, TrimBlanks(thoughts->begin));
  const std::string_view rest = std::string_view(*text).substr(begin.end);
  const LooseMatch end = MatchLoosely(rest, TrimBlanks(thoughts->end));
  if (end.state != LooseMatch::State::kWhole) return;
  text->erase(0, begin.end + end.end);
  text->erase(0, std::min(text->find_first_not_of(" \t\r\n"), text->size()));
}

void FindCalls(const AnswerProber& prober, const std::string& tail, AnswerFormat* format) {
  if (!prober.traits().takes_calls) {
    format->why_no_calls = "it prints no calls";
    return;
  }
  const CallDiscovery discovery(prober, tail, *format);
  const std::optional<CallFormat> calls = discovery.Find();
  if (!calls) {
    format->why_no_calls = "how it writes calls cannot be told";
  } else if (!discovery.ReadsOddValues(*calls)) {
    format->why_no_calls = "what it makes of calls cannot be read as what they were";
  } else {
    format->calls = *calls;
    format->why_no_calls.clear();
  }
}

}  // namespace kvlathe

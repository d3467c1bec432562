// Calls are read back of every template that scripts/fetch_jinja.sh brings, and of those that come
// with kvlathe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "chat/chat_template.h"
#include "chat/sample_answers.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using Json = nlohmann::json;

struct Place {
  std::string name, path;
};

std::vector<Place> Templates() {
  std::vector<Place> places;
  for (const char* folder : {"build/jinja/templates", "share/chat_templates"}) {
    const std::filesystem::path root = std::filesystem::path(KVLATHE_SOURCE_DIR) / folder;
    if (!std::filesystem::exists(root)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (entry.path().extension() != ".jinja") continue;
      places.push_back({entry.path().stem().string(), entry.path().string()});
    }
  }
  std::ranges::sort(places, {}, &Place::name);
  return places;
}

const std::vector<std::pair<std::string, SampleAnswer>>& Answers() {
  static const auto& answers = *new std::vector<std::pair<std::string, SampleAnswer>>{
      {"one", {.calls = {{"weather", {{"city", "Oslo"}, {"days", 3}, {"exact", true}}}}}},
      {"text", {.content = "I look.", .calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}}}}},
      {"thoughts",
       {.thoughts = "A question.", .calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}}}}},
      {"two",
       {.calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}},
                  {"add_all", {{"numbers", {1, 2.5, -3}}, {"unit", "7"}, {"scale", -0.5}}}}}},
      {"same twice",
       {.calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}},
                  {"weather", {{"city", "Rome"}, {"days", 1}}}}}},
      {"odd",
       {.calls = {{"weather", {{"city", "a \"b\"\n\tc\\d é <x>, {y}: 'z' [1] a=b"}, {"days", 0}}}}}},
      {"nested",
       {.calls = {{"add_all",
                   {{"numbers", Json::array()}, {"unit", "true"}, {"of", {{"a", "b, c"}}}}}}}},
      {"empty", {.calls = {{"weather", Json::object()}}}},
      {"no text", {.calls = {{"weather", {{"city", ""}, {"exact", false}}}}}},
      {"all", {.content = "I look.",
       .thoughts = "A question.",
       .calls = {{"add_all", {{"unit", "m"}, {"numbers", {1}}}}, {"weather", {{"city", "Oslo"}}}}}},
  };
  return answers;
}

TEST(FetchedTemplates, CallsAreReadBack) {
  int n_templates = 0, n_answers = 0;
  for (const Place& place : Templates()) {
    SCOPED_TRACE(place.name);
    const auto made =
        ChatTemplate::Make({.place = place.name, .text = *ReadTextFile(place.path, 1 << 20)},
                           {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    ASSERT_TRUE(made.ok()) << made.status();
    if (!made->traits(true).takes_tools) continue;
    const AnswerFormat& format = made->answer_format(true);
    ++n_templates;
    if (!format.calls) {
      ADD_FAILURE() << "NOT READ " << place.name << ": " << format.why_no_calls;
      continue;
    }
    for (const auto& [name, answer] : Answers()) {
      const auto sample = RenderSample(*made, answer);
      if (!sample) continue;
      ++n_answers;
      const ToolSchemas schemas = SampleSchemas();
      EXPECT_TRUE(ReadSample(sample->format, schemas, sample->text, 1 << 20) == sample->printed)
          << "DIFFERS " << place.name << ": " << name << "\n" << sample->text;
      EXPECT_TRUE(ReadSample(sample->format, schemas, sample->text, 1) == sample->printed)
          << "STREAMED " << place.name << ": " << name;
    }
  }
  std::cout << n_templates << " templates, " << n_answers << " answers\n";
}

}  // namespace
}  // namespace kvlathe

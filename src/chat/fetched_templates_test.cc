// Calls are read back of every template that scripts/fetch_jinja.sh brings, and of those that come
// with kvlathe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "chat/chat_template.h"
#include "chat/sample_answers.h"
#include "io/files.h"

namespace kvlathe {
namespace {

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

// Those that print tools and of which calls cannot be read; the last three print none.
const std::set<std::string> kNotRead = {"MiniMax-M3", "LFM2-8B-A1B", "LFM2.5-Instruct",
                                        "ibm-granite-granite-3.3-2B-Instruct"};

// Whether a reader may make text of a call and yet be right: what stands there can be told from no
// other text. The template puts texts into quotes without escaping those within.
bool MayBeText(const std::string& template_name, const std::string& answer) {
  return template_name == "LFM2.5-8B-A1B" && answer == "odd";
}

TEST(FetchedTemplates, CallsAreReadBack) {
  int n_templates = 0, n_answers = 0;
  std::set<std::string> not_read;
  for (const Place& place : Templates()) {
    SCOPED_TRACE(place.name);
    const auto made =
        ChatTemplate::Make({.place = place.name, .text = *ReadTextFile(place.path, 1 << 20)},
                           {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    ASSERT_TRUE(made.ok()) << made.status();
    if (!made->traits(true).takes_tools) continue;
    const AnswerFormat& format = made->answer_format(true);
    if (!format.calls) {
      not_read.insert(place.name);
      EXPECT_THAT(made->Notes(), testing::Contains(testing::HasSubstr("calls stay text")));
      continue;
    }
    ++n_templates;
    for (const auto& [name, answer] : SampleAnswers()) {
      if (IsBareJson(*format.calls) && !answer.content.empty()) continue;
      const auto sample = RenderSample(*made, answer);
      if (!sample) continue;
      SCOPED_TRACE(name + ": " + sample->text);
      ++n_answers;
      for (const size_t n_step : {sample->text.size(), size_t{1}}) {
        const SampleAnswer read = ReadSample(sample->format, SampleSchemas(), sample->text, n_step);
        if (MayBeText(place.name, name)) {
          EXPECT_EQ(read.content, sample->text);
        } else {
          EXPECT_EQ(read.content, sample->printed.content);
          EXPECT_EQ(read.thoughts, sample->printed.thoughts);
          EXPECT_EQ(read.calls, sample->printed.calls);
        }
      }
    }
  }
  EXPECT_EQ(not_read, kNotRead);
  EXPECT_GE(n_templates, 62);
  EXPECT_GE(n_answers, 550);
}

}  // namespace
}  // namespace kvlathe

#include "chat/template_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/files.h"
#include "io/gguf/gguf_test_writer.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

constexpr const char* kTemplate = "{% for m in messages %}<{{ m.content }}>{% endfor %}";

class TemplateFilesTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    ASSERT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
  }
  StatusOr<ChatTemplate> Load() { return LoadChatTemplate(folder_.path(), {}); }
  StatusOr<ChatTemplate> LoadGguf(const GgufTestWriter& writer) {
    writer.Write(folder_ / "model.gguf");
    return LoadChatTemplate(folder_ / "model.gguf", {});
  }
  static void ExpectFailure(const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(part));
  }

  ScratchFolder folder_;
};

TEST_F(TemplateFilesTest, TheJinjaFileComesBeforeTheConfiguration) {
  EXPECT_EQ(Load().status().code(), StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"tokenizer_class": "X"})");
  ExpectFailure(Load().status(), StatusCode::kNotFound, "no chat template; --chat-template");
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", kTemplate}}).dump());
  EXPECT_EQ(Load()->source(), kTemplate);
  Write("chat_template.jinja", "{{ messages[0].content }}");
  EXPECT_EQ(Load()->source(), "{{ messages[0].content }}");
  Write("additional_chat_templates/tool_use.jinja", "{{ tools | tojson }}");
  EXPECT_TRUE(Load()->traits(/*has_tools=*/true).takes_tools);
  Write("chat_template.jinja", "{{ messages[0]");
  ExpectFailure(Load().status(), StatusCode::kInvalidArgument, "chat_template.jinja: ");
}

TEST_F(TemplateFilesTest, OfAListTheDefaultCounts) {
  nlohmann::json list = {{{"name", "tool_use"}, {"template", "{{ tools | tojson }}"}}};
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", list}}).dump());
  ExpectFailure(Load().status(), StatusCode::kNotFound, "no default among tool_use;");
  list.push_back({{"name", "default"}, {"template", kTemplate}});
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", list}}).dump());
  EXPECT_EQ(Load()->source(), kTemplate);
  EXPECT_TRUE(Load()->traits(/*has_tools=*/true).takes_tools);
  for (const char* damaged : {R"({"chat_template": 3})", R"({"chat_template": [3]})",
                              R"({"chat_template": [{"name": 3}]})", R"({"chat_template": )"}) {
    Write("tokenizer_config.json", damaged);
    EXPECT_FALSE(Load().ok()) << damaged;
    EXPECT_THAT(MessageOf(Load().status()), HasSubstr("tokenizer_config.json: ")) << damaged;
  }
}

TEST_F(TemplateFilesTest, OfAGgufFileItIsTheMetadatas) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  ExpectFailure(LoadChatTemplate(folder_ / "none", {}).status(), StatusCode::kNotFound,
                "no such file or directory");
  GgufTestWriter writer;
  ExpectFailure(LoadGguf(writer).status(), StatusCode::kNotFound, "the model has no chat template");
  writer.AddTexts("tokenizer.chat_templates", {"rag", "tool_use"});
  writer.AddText("tokenizer.chat_template.rag", "{{ 1 }}");
  ExpectFailure(LoadGguf(writer).status(), StatusCode::kNotFound, "no default among rag, tool_use");
  writer.AddText(kKey, kTemplate);
  const auto found = LoadGguf(writer);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->source(), kTemplate);

  GgufTestWriter damaged, huge;
  damaged.AddInteger(kKey, 3);
  ExpectFailure(LoadGguf(damaged).status(), StatusCode::kDataLoss, "tokenizer.chat_template");
  huge.AddText(kKey, std::string((1 << 20) + 1, 'x'));
  ExpectFailure(LoadGguf(huge).status(), StatusCode::kDataLoss, "tokenizer.chat_template: ");
}

TEST_F(TemplateFilesTest, EveryNameHasItsFile) {
  for (const std::string& name : ChatTemplateNames()) {
    const auto found = LoadChatTemplateFile(
        fmt::format("{}/share/chat_templates/{}.jinja", KVLATHE_SOURCE_DIR, name), {});
    EXPECT_TRUE(found.ok()) << name << ": " << found.status();
  }
}

}  // namespace
}  // namespace kvlathe

// Tokenizers of GGUF files in a directory give the ids that they give in the file.
#include "tokenizer/gguf/gguf_tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/scratch_folder.h"
#include "tokenizer/files/json_fields.h"
#include "tokenizer/gguf/gguf_tokenizer.h"
#include "tokenizer/gguf/sample_gguf_tokenizers.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;

class GgufTokenizerFiles : public testing::Test {
 protected:
  Status Write(const GgufTokenizerSample& sample) {
    sample.Write(path_);
    const auto file = GgufFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    return WriteGgufTokenizer(*file, folder_.path());
  }
  void ExpectTheSame(const GgufTokenizerSample& sample) {
    const Status written = Write(sample);
    ASSERT_TRUE(written.ok()) << written;
    const auto of_file = Tokenizer::Load(path_), of_directory = Tokenizer::Load(folder_.path());
    ASSERT_TRUE(of_directory.ok()) << of_directory.status();
    const std::string text = SampleText(20000) +
                             "<user> It's 1234567 <|im_start|>\xFF\u00E9 e\u0301\xC3 \u4E2D  "
                             "\n\n\t<s>a</s> We'LL\xF0\x9F";
    for (const bool flag : {false, true}) {
      EXPECT_EQ((*of_directory)->Tokenize(text, flag, !flag),
                (*of_file)->Tokenize(text, flag, !flag));
      EXPECT_EQ((*of_directory)->Tokenize(text, flag), (*of_file)->Tokenize(text, flag));
    }
    const std::vector<int32_t> ids = (*of_file)->Tokenize(text, true);
    EXPECT_EQ((*of_directory)->Detokenize(ids), (*of_file)->Detokenize(ids));
    EXPECT_EQ((*of_directory)->bos_id(), (*of_file)->bos_id());
    EXPECT_EQ((*of_directory)->eos_id(), (*of_file)->eos_id());
    EXPECT_EQ((*of_directory)->vocab_size(), (*of_file)->vocab_size());
  }

  ScratchFolder folder_;
  std::string path_ = folder_ / "model.gguf";
};

TEST_F(GgufTokenizerFiles, ByteLevelGivesTheSameIds) {
  for (const char* pre :
       {"gpt-2", "smollm", "llama-bpe", "qwen2", "falcon", "gpt-4o", "kimi-k2", "deepseek-llm",
        "deepseek-v3", "superbpe", "afmoe", "tiny_aya", "bailingmoe", "chameleon"}) {
    SCOPED_TRACE(pre);
    GgufTokenizerSample sample = GgufByteLevelSample(pre);
    sample.ids["bos"] = sample.Add("<|im_start|>", 3);
    sample.ids["eos"] = sample.Add("<|im_end|>", 3);
    sample.Add("<user>", 4);
    for (const bool adds_bos : {false, true}) {
      sample.flags["add_bos_token"] = adds_bos;
      ExpectTheSame(sample);
    }
  }
  ExpectTheSame(GgufByteLevelSample("gpt-2"));
}

TEST_F(GgufTokenizerFiles, SentencePieceGivesTheSameIds) {
  GgufTokenizerSample sample = GgufSentencePieceSample();
  ExpectTheSame(sample);
  sample.Add("<user>", 4);
  sample.Add("<|im_start|>", 3);
  sample.flags["add_bos_token"] = false;
  ExpectTheSame(sample);
}

TEST_F(GgufTokenizerFiles, TheChatTemplateGoesWithIt) {
  GgufTokenizerSample sample = GgufByteLevelSample("smollm");
  sample.ids["bos"] = sample.Add("<|im_start|>", 3);
  sample.ids["eos"] = sample.Add("<|im_end|>", 3);
  sample.texts["tokenizer.chat_template"] =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\n' }}{% endif %}";
  ASSERT_TRUE(Write(sample).ok());
  const auto config = ReadJsonFile(folder_.path() + "/tokenizer_config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["chat_template"], sample.texts["tokenizer.chat_template"]);
}

TEST_F(GgufTokenizerFiles, RefusesWhatTheFilesCannotSay) {
  const Status status = Write(GgufByteLevelSample("sarvam-moe"));
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr(path_ + ": tokenizer.ggml.pre: \"sarvam-moe\""));
  GgufTokenizerSample sample = GgufByteLevelSample("gpt-2");
  sample.Add("a\xFF", 4);
  EXPECT_EQ(Write(sample).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe

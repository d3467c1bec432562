#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "server/api/api_fixture.h"

namespace kvlathe::api {
namespace {

using ::testing::HasSubstr;

class EmbeddingsTest : public ApiTest {};

std::vector<float> Numbers(const Json& json) { return json.get<std::vector<float>>(); }

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// The rows of the table of tokens, which are those of the last product too.
std::vector<std::vector<float>> TokenRows() {
  auto reader =
      *SafetensorsReader::OpenModel(std::string(KVLATHE_SOURCE_DIR) + "/models/lathe-nano");
  const TensorView* const view = reader.Find("model.embed_tokens.weight");
  std::vector<std::vector<float>> rows;
  for (int64_t row = 0; row < view->shape[0]; ++row) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < view->shape[1]; ++i) {
      uint16_t half;
      std::memcpy(&half, view->data + 2 * (row * view->shape[1] + i), 2);
      const uint32_t bits = uint32_t{half} << 16;
      float number;
      std::memcpy(&number, &bits, 4);
      numbers.push_back(number);
    }
    rows.push_back(std::move(numbers));
  }
  return rows;
}

TEST_F(EmbeddingsTest, TheLastHiddenStateIsTheOneThatTheNextTokenIsReadFrom) {
  const std::string text = "Once upon a time there was a";
  const Json answer = Answer("/v1/embeddings", {{"input", text}, {"pooling", "last"}});
  const std::vector<float> hidden = Numbers(answer["data"][0]["embedding"]);
  EXPECT_NEAR(Dot(hidden, hidden), 1, 1e-5);
  const Json next =
      Answer("/v1/completions", Greedy({{"prompt", text}, {"max_tokens", 1}, {"logprobs", 0}}));
  const std::vector<std::vector<float>> rows = TokenRows();
  size_t best = 0;
  for (size_t id = 0; id < rows.size(); ++id) {
    if (Dot(rows[id], hidden) > Dot(rows[best], hidden)) best = id;
  }
  const Json told = Answer("/detokenize", {{"tokens", {best}}});
  EXPECT_EQ(next["choices"][0]["text"].get<std::string>().find_first_not_of(' '),
            next["choices"][0]["text"].get<std::string>().find(told["content"].get<std::string>()));
}

TEST_F(EmbeddingsTest, MeanOfManyStepsBesideOthersIsTheMean) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += " the rain fell and fell";
  const Json body = {{"input", {text, "short"}}, {"model", "nano"}};
  const Json alone = Answer("/v1/embeddings", body);
  EXPECT_EQ(alone["model"], "nano");
  EXPECT_EQ(alone["data"][1]["index"], 1);
  EXPECT_EQ(alone["usage"]["prompt_tokens"], alone["usage"]["total_tokens"]);
  EngineOptions options;
  options.max_batch_tokens = 7;
  options.prefix_bytes = 32 << 20;
  StartEngine(options);
  service_ = std::make_unique<ApiService>(Context());
  const auto reply = Post("/v1/embeddings", body);
  const auto beside =
      Post("/v1/completions", Greedy({{"prompt", text}, {"max_tokens", 9}, {"ignore_eos", true}}));
  const auto again = Post("/v1/embeddings", body);
  Run({reply, beside, again});
  EXPECT_EQ(beside->SentJson()["usage"]["completion_tokens"], 9);
  for (const auto& answer : {reply->SentJson(), again->SentJson()}) {
    for (int i = 0; i < 2; ++i) {
      const auto expected = Numbers(alone["data"][i]["embedding"]);
      EXPECT_NEAR(Dot(Numbers(answer["data"][i]["embedding"]), expected), 1, 1e-3) << i;
    }
  }
}

TEST_F(EmbeddingsTest, FormsOfOthersHoldTheSameNumbers) {
  const Json numbers = Answer("/v1/embeddings", {{"input", "rain"}})["data"][0]["embedding"];
  EXPECT_EQ(Answer("/embedding", {{"content", "rain"}})[0]["embedding"][0], numbers);
  EXPECT_EQ(Answer("/api/embed", {{"model", "nano:latest"}, {"input", {"rain"}}})["embeddings"][0],
            numbers);
  EXPECT_EQ(Answer("/api/embeddings", {{"model", "nano"}, {"prompt", "rain"}})["embedding"],
            numbers);
  const Json base64 = Answer("/v1/embeddings", {{"input", "rain"}, {"encoding_format", "base64"}});
  const auto text = base64["data"][0]["embedding"].get<std::string>();
  EXPECT_EQ(text.size(), (numbers.size() * 4 + 2) / 3 * 4);
  // The first number is the first 4 bytes, which are 5 digits and a third.
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = bits << 6 | kDigits.find(text[static_cast<size_t>(i)]);
  uint32_t first = 0;
  for (int i = 0; i < 4; ++i) first |= static_cast<uint32_t>(bits >> (40 - 8 * i) & 255) << 8 * i;
  float number;
  std::memcpy(&number, &first, 4);
  EXPECT_FLOAT_EQ(number, numbers[0].get<float>());
}

TEST_F(EmbeddingsTest, NamesWhatIsWrong) {
  const auto param = [&](const Json& body) {
    return Answer("/v1/embeddings", body, 400)["error"]["param"];
  };
  EXPECT_EQ(param({{"input", "a"}, {"dimensions", 8}}), "dimensions");
  EXPECT_EQ(param({{"input", "a"}, {"encoding_format", "hex"}}), "encoding_format");
  EXPECT_EQ(param({{"input", "a"}, {"pooling", "max"}}), "pooling");
  EXPECT_EQ(param({{"input", Json::array()}}), "input");
  EXPECT_EQ(param({{"input", {5000}}}), "input");
  EXPECT_EQ(param(Json::object()), "input");
  EXPECT_EQ(param({{"input", "a"}, {"kv", "other"}}), "kv");
}

TEST_F(EmbeddingsTest, AClientThatGoesTakesItsRequestsAlong) {
  const auto reply = Post("/v1/embeddings", {{"input", {"rain", "snow"}}});
  reply->GoAway();
  Run({reply});
  EXPECT_EQ(pool_->usage().used_bytes, 0);
  ASSERT_EQ(observer_.ended.size(), 1u);
  EXPECT_EQ(observer_.ended[0].http_status, 499);
}

}  // namespace
}  // namespace kvlathe::api

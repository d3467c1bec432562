#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "server/api/api_fixture.h"

namespace kvlathe::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCompletionsPath[] = "/v1/completions";
constexpr char kPrompt[] = "The ship sailed out of the harbour and";

std::vector<std::string> KeysOf(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

// Log-probabilities of ids[1...] by one forward pass over all of them.
std::vector<double> LiteralLogprobs(const std::vector<int32_t>& ids) {
  Model* const model = NanoModel::Get().levels()[0];
  HostPool pool(int64_t{64} << 20);
  SequenceCache cache(&model->layout(), &pool);
  EXPECT_TRUE(cache.Extend(static_cast<int>(ids.size())).ok());
  const SequenceStep step{&cache, ids, SequenceStep::Logits::kAll};
  EXPECT_TRUE(model->Forward({&step, 1}).ok());
  std::vector<double> logprobs;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const std::span<const float> logits = model->logits(static_cast<int64_t>(i));
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    logprobs.push_back(logits[ids[i + 1]] - std::log(sum));
  }
  return logprobs;
}

class CompletionsTest : public ApiTest {};

TEST_F(CompletionsTest, AnswersAPromptWithTheShapeOfOpenAis) {
  const Json json = Answer(
      kCompletionsPath,
      Greedy(
          {{"model", "lathe-nano"}, {"prompt", kPrompt}, {"max_tokens", 8}, {"user", "ignored"}}));
  EXPECT_THAT(KeysOf(json), ElementsAre("id", "object", "created", "model", "choices", "usage"));
  EXPECT_EQ(json["id"], "cmpl-r1");
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "lathe-nano");
  EXPECT_GT(json["created"], 1700000000);
  ASSERT_EQ(json["choices"].size(), 1u);
  const Json& choice = json["choices"][0];
  EXPECT_THAT(KeysOf(choice), ElementsAre("index", "text", "logprobs", "finish_reason"));
  EXPECT_EQ(choice["index"], 0);
  EXPECT_FALSE(choice["text"].get<std::string>().empty());
  EXPECT_EQ(choice["logprobs"], nullptr);
  EXPECT_EQ(choice["finish_reason"], "length");
  const size_t n_prompt = NanoModel::Get().tokenizer().Tokenize(kPrompt, true).size();
  EXPECT_EQ(json["usage"], (Json{{"prompt_tokens", n_prompt},
                                 {"completion_tokens", 8},
                                 {"total_tokens", n_prompt + 8},
                                 {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
}

TEST_F(CompletionsTest, GeneratesSixteenTokensUnlessToldOtherwise) {
  EXPECT_EQ(Answer(kCompletionsPath, Greedy({{"prompt", kPrompt}}))["usage"]["completion_tokens"],
            16);
}

TEST_F(CompletionsTest, StreamsTheTextOfTheWholeAnswer) {
  const Json body = Greedy({{"prompt", kPrompt}, {"max_tokens", 12}});
  const Json whole = Answer(kCompletionsPath, body);
  Json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = Stream(kCompletionsPath, streamed);
  ASSERT_GE(events.size(), 3u);
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["usage"], nullptr);
    text += events[i]["choices"][0]["text"].get<std::string>();
    const bool is_last = i + 2 == events.size();
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"], is_last ? Json("length") : Json(nullptr));
  }
  EXPECT_EQ(text, whole["choices"][0]["text"]);
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
}

TEST_F(CompletionsTest, TakesEveryFormOfPrompt) {
  const std::vector<int32_t> ids = NanoModel::Get().tokenizer().Tokenize(kPrompt, true);
  const auto texts = [&](const Json& prompt) {
    const Json json = Answer(kCompletionsPath, Greedy({{"prompt", prompt}, {"max_tokens", 6}}));
    std::vector<std::string> found;
    for (const Json& choice : json["choices"]) {
      EXPECT_EQ(choice["index"], found.size());
      found.push_back(choice["text"].get<std::string>());
    }
    return found;
  };
  const std::vector<std::string> one = texts(kPrompt);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(texts(ids), one);
  EXPECT_THAT(texts(Json::array({kPrompt, "In the garden", kPrompt})),
              ElementsAre(one[0], texts("In the garden")[0], one[0]));
  EXPECT_THAT(texts(Json::array({ids, ids})), ElementsAre(one[0], one[0]));
}

TEST_F(CompletionsTest, GivesEveryPromptItsChoices) {
  const Json body = {{"prompt", Json::array({kPrompt, "In the garden"})},
                     {"n", 3},
                     {"best_of", 3},
                     {"max_tokens", 12},
                     {"temperature", 1.5},
                     {"seed", 7}};
  const Json json = Answer(kCompletionsPath, body);
  ASSERT_EQ(json["choices"].size(), 6u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 72);
  const auto& tokenizer = NanoModel::Get().tokenizer();
  EXPECT_EQ(json["usage"]["prompt_tokens"], tokenizer.Tokenize(kPrompt, true).size() +
                                                tokenizer.Tokenize("In the garden", true).size());
  std::set<std::string> texts;
  for (const Json& choice : json["choices"]) texts.insert(choice["text"].get<std::string>());
  EXPECT_GE(texts.size(), 5u);  // choices of one prompt draw with different seeds
  const Json again = Answer(kCompletionsPath, body);
  EXPECT_EQ(again["choices"], json["choices"]);  // and with the same ones another time
}

TEST_F(CompletionsTest, EchoesWithTheLogprobsOfALiteralForward) {
  const std::vector<int32_t> ids = NanoModel::Get().tokenizer().Tokenize(kPrompt, true);
  const std::vector<double> literal = LiteralLogprobs(ids);
  for (const Json& prompt : {Json(kPrompt), Json(ids)}) {
    for (const int max_tokens : {0, 1}) {
      const Json json = Answer(kCompletionsPath, Greedy({{"prompt", prompt},
                                                         {"max_tokens", max_tokens},
                                                         {"logprobs", 1},
                                                         {"echo", true},
                                                         {"seed", 1234}}));
      const Json& choice = json["choices"][0];
      const Json& logprobs = choice["logprobs"];
      const size_t n = ids.size() + max_tokens;
      for (const char* const field : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
        ASSERT_EQ(logprobs[field].size(), n) << field;
      }
      EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
      EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
      EXPECT_EQ(json["usage"]["completion_tokens"], max_tokens);
      EXPECT_EQ(choice["finish_reason"], "length");
      EXPECT_THAT(choice["text"].get<std::string>(), ::testing::StartsWith(kPrompt));
      double sum = 0, literal_sum = 0;
      for (size_t i = 1; i < ids.size(); ++i) {
        const double logprob = logprobs["token_logprobs"][i];
        EXPECT_NEAR(logprob, literal[i - 1], 0.05) << i;
        sum += logprob;
        literal_sum += literal[i - 1];
        // The token itself is there, and the likeliest.
        const Json& top = logprobs["top_logprobs"][i];
        EXPECT_EQ(top.at(logprobs["tokens"][i].get<std::string>()), logprob);
        EXPECT_LE(top.size(), 2u);
      }
      EXPECT_NEAR(sum, literal_sum, 0.1);
    }
  }
}

// What lm-evaluation-harness's adapter "gguf" cuts by: where a token begins in the echoed text.
TEST_F(CompletionsTest, OffsetsCountCharactersOfTheText) {
  for (const std::string& prompt :
       {std::string(kPrompt), std::string("Caf\xC3\xA9 \xF0\x9F\x98\x80 na\xC3\xAFve"),
        std::string(" two  spaces")}) {
    const Json json =
        Answer(kCompletionsPath,
               Greedy({{"prompt", prompt}, {"max_tokens", 1}, {"logprobs", 10}, {"echo", true}}));
    const Json& logprobs = json["choices"][0]["logprobs"];
    const auto n_chars = [](const std::string& text) {
      return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    };
    EXPECT_EQ(logprobs["text_offset"][0], 0);
    int64_t last = 0;
    for (const Json& offset : logprobs["text_offset"]) {
      EXPECT_GE(offset, last);
      last = offset;
    }
    // The generated token begins where the prompt ends.
    EXPECT_EQ(last, n_chars(prompt)) << prompt;
    for (const Json& top : logprobs["top_logprobs"]) {
      if (top.is_null()) continue;
      EXPECT_THAT(top.size(), ::testing::AllOf(::testing::Ge(9), ::testing::Le(11)));
    }
  }
}

TEST_F(CompletionsTest, OffsetsFollowSpecialTokensThatAreWrittenInTheText) {
  for (const bool adds_special : {true, false}) {
    const Json choice =
        Answer("/v1/completions", Greedy({{"prompt", "<s>Once upon</s> a time"},
                                          {"echo", true},
                                          {"logprobs", 0},
                                          {"max_tokens", 1},
                                          {"add_special_tokens", adds_special}}))["choices"][0];
    const auto text = choice["text"].get<std::string>();
    const Json& logprobs = choice["logprobs"];
    for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
      auto token = logprobs["tokens"][i].get<std::string>();
      const auto at = logprobs["text_offset"][i].get<size_t>();
      if (token.starts_with(' ') && text.substr(at, 1) != " ") token.erase(0, 1);
      EXPECT_EQ(text.substr(at, token.size()), token) << i << " of " << text;
    }
  }
}

TEST_F(CompletionsTest, StreamsLogprobsOfEveryToken) {
  const Json body =
      Greedy({{"prompt", kPrompt}, {"max_tokens", 9}, {"logprobs", 2}, {"echo", true}});
  const Json whole = Answer(kCompletionsPath, body);
  Json streamed = body;
  streamed["stream"] = true;
  Json tokens = Json::array(), offsets = Json::array();
  std::string text;
  for (const Json& event : Stream(kCompletionsPath, streamed)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    text += event["choices"][0]["text"].get<std::string>();
    tokens.insert(tokens.end(), logprobs["tokens"].begin(), logprobs["tokens"].end());
    offsets.insert(offsets.end(), logprobs["text_offset"].begin(), logprobs["text_offset"].end());
  }
  EXPECT_EQ(text, whole["choices"][0]["text"]);
  EXPECT_EQ(tokens, whole["choices"][0]["logprobs"]["tokens"]);
  EXPECT_EQ(offsets, whole["choices"][0]["logprobs"]["text_offset"]);
}

TEST_F(CompletionsTest, EndsBeforeAStopThatChunksCut) {
  const Json free = Answer(kCompletionsPath, Greedy({{"prompt", kPrompt}, {"max_tokens", 24}}));
  const std::string text = free["choices"][0]["text"];
  ASSERT_GE(text.size(), 24u);
  const std::string stop = text.substr(text.size() / 2, 6);
  const std::string expected = text.substr(0, text.find(stop));
  for (const Json& stops : {Json(stop), Json::array({"never to be seen", stop})}) {
    const Json body = Greedy({{"prompt", kPrompt}, {"max_tokens", 24}, {"stop", stops}});
    const Json whole = Answer(kCompletionsPath, body);
    EXPECT_EQ(whole["choices"][0]["text"], expected);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    Json streamed = body;
    streamed["stream"] = true;
    std::string pieces;
    for (const Json& event : Stream(kCompletionsPath, streamed)) {
      pieces += event["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(pieces, expected);
  }
}

TEST_F(CompletionsTest, APromptThatBeginsWithBosGetsNoSecondOne) {
  const auto n_prompt = [&](const char* prompt) {
    const Json json = Answer(kCompletionsPath, {{"prompt", prompt}, {"max_tokens", 1}});
    return json["usage"]["prompt_tokens"].get<int>();
  };
  EXPECT_EQ(n_prompt("<s>hi"), n_prompt("hi"));
  EXPECT_EQ(n_prompt("<s><s>hi"), n_prompt("hi") + 1);
}

TEST_F(CompletionsTest, ARateIsForLevelsThatHaveRates) {
  const Json error = Answer(kCompletionsPath, {{"prompt", "hi"}, {"rate", 0.5}}, 400)["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("rate"));
}

TEST_F(CompletionsTest, APromptMayFillTheContextWhereNothingIsToBeGenerated) {
  const Json body = {
      {"prompt", std::vector<int>(256, 5)}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}};
  const Json json = Answer(kCompletionsPath, body);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), 256u);
  Json longer = body;
  longer["prompt"] = std::vector<int>(257, 5);
  Answer(kCompletionsPath, longer, 400);
  Json generates = body;
  generates["max_tokens"] = 1;
  Answer(kCompletionsPath, generates, 400);
}

TEST_F(CompletionsTest, TellsTheObserverOfFieldsThatItDoesNotKnow) {
  Json body = {{"prompt", kPrompt}, {"max_tokens", 1}, {"user", "somebody"}, {"echo", nullptr}};
  Answer(kCompletionsPath, body);
  EXPECT_TRUE(observer_.ended.back().unknown_fields.empty());
  body["temprature"] = 0.5;
  body[std::string(100, 'x')] = 1;
  body["absent"] = nullptr;
  Answer(kCompletionsPath, body);
  const std::vector<std::string> expected = {"temprature", std::string(64, 'x')};
  EXPECT_EQ(observer_.ended.back().unknown_fields, expected);
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                     {"max_tokens", 1},
                     {"documents", nullptr},
                     {"functons", 1}};
  Answer("/v1/chat/completions", chat);
  EXPECT_EQ(observer_.ended.back().unknown_fields, std::vector<std::string>{"functons"});
  Answer("/v1/responses", {{"input", "Hello"}, {"max_output_tokens", 1}, {"inputs", 1}});
  EXPECT_EQ(observer_.ended.back().unknown_fields, std::vector<std::string>{"inputs"});
}

TEST_F(CompletionsTest, DraftsChangeNothingButTheCounts) {
  const std::string prompt = "one two three, one two three, one two three, one two";
  const Json body = Greedy({{"prompt", prompt}, {"max_tokens", 60}, {"ignore_eos", true}});
  const Json alone = Answer(kCompletionsPath, body);
  EXPECT_EQ(alone["usage"].count("completion_tokens_details"), 0u);
  Json drafted = body;
  drafted["draft"] = "ngram:tokens=5,min=1";
  const Json answer = Answer(kCompletionsPath, drafted);
  EXPECT_EQ(answer["choices"][0]["text"], alone["choices"][0]["text"]);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 60);
  const Json details = answer["usage"]["completion_tokens_details"];
  const int64_t n_accepted = details["accepted_prediction_tokens"];
  EXPECT_GT(n_accepted, 0);
  EXPECT_EQ(observer_.ended.back().accepted_tokens, n_accepted);
  EXPECT_EQ(observer_.ended.back().drafted_tokens,
            n_accepted + details["rejected_prediction_tokens"].get<int64_t>());
  drafted["draft"] = "none";
  EXPECT_EQ(Answer(kCompletionsPath, drafted)["usage"].count("completion_tokens_details"), 0u);
}

TEST_F(CompletionsTest, TakesTheLevelThatARequestNames) {
  for (const Json& kv : {Json("int8"), Json("1"), Json(1)}) {
    Answer(kCompletionsPath, {{"prompt", kPrompt}, {"kv", kv}, {"max_tokens", 1}});
    EXPECT_EQ(observer_.ended.back().level, "int8");
  }
  Answer(kCompletionsPath, {{"prompt", kPrompt}, {"model", "nano@int8"}, {"max_tokens", 1}});
  EXPECT_EQ(observer_.ended.back().level, "int8");
  Answer(kCompletionsPath, {{"prompt", kPrompt}, {"max_tokens", 1}});
  EXPECT_EQ(observer_.ended.back().level, "none");
  const Json error = Answer(kCompletionsPath, {{"prompt", kPrompt}, {"kv", "int4"}}, 400);
  EXPECT_EQ(error["error"]["param"], "kv");
  EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr("it has none, int8"));
}

TEST_F(CompletionsTest, HoldsTheEndBackWhereAsked) {
  // A bias makes the end of sequence the likeliest token.
  const Json body = Greedy({{"prompt", kPrompt}, {"logit_bias", {{"2", 100}}}, {"max_tokens", 6}});
  const Json ended = Answer(kCompletionsPath, body);
  EXPECT_EQ(ended["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(ended["choices"][0]["text"], "");
  Json held = body;
  held["min_tokens"] = 4;
  const Json longer = Answer(kCompletionsPath, held);
  EXPECT_EQ(longer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(longer["usage"]["completion_tokens"], 4);
  Json ignored = body;
  ignored["ignore_eos"] = true;
  const Json whole = Answer(kCompletionsPath, ignored);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 6);
  // With the log-probabilities of the prompt the end has its own.
  Json echoed = body;
  echoed["echo"] = true;
  echoed["logprobs"] = 1;
  const Json logprobs = Answer(kCompletionsPath, echoed)["choices"][0];
  EXPECT_EQ(logprobs["finish_reason"], "stop");
  EXPECT_EQ(logprobs["text"], kPrompt);
  EXPECT_EQ(logprobs["logprobs"]["tokens"].back(), "</s>");
}

TEST_F(CompletionsTest, NamesTheFieldThatIsWrong) {
  const auto with = [](const char* field, Json value) {
    Json body = {{"prompt", "x"}};
    body[field] = std::move(value);
    return body;
  };
  const std::pair<const char*, Json> wrong[] = {
      {"prompt", Json::array()},
      {"prompt", 5},
      {"prompt", Json::array({-1})},
      {"prompt", Json::array({4096})},
      {"prompt", Json::array({1.5})},
      {"prompt", Json::array({1, "x"})},
      {"prompt", Json::array({"x", 1})},
      {"prompt", Json::array({Json::array({1}), "x"})},
      {"prompt", Json::array({Json::array({Json::array({1})})})},
      {"prompt", Json::array({Json::array()})},
      {"max_tokens", -1},
      {"max_tokens", 1.5},
      {"max_tokens", "8"},
      {"max_tokens", 1e300},
      {"n", 0},
      {"n", 129},
      {"n", 9223372036854775807},
      {"best_of", 2},
      {"logprobs", 21},
      {"logprobs", true},
      {"temperature", -0.1},
      {"temperature", "hot"},
      {"top_p", 1.1},
      {"top_k", -2},
      {"min_p", 2},
      {"repetition_penalty", 0},
      {"presence_penalty", 2.1},
      {"frequency_penalty", -2.1},
      {"logit_bias", {{"4096", 1}}},
      {"logit_bias", {{"x", 1}}},
      {"logit_bias", {{"5", 1}, {"05", 2}}},
      {"logit_bias", {{"-0", 2}}},
      {"stream_options", {{"include_usage", true}}},
      {"rate", 1.5},
      {"under_pressure", "no"},
      {"draft", true},
      {"draft", "yes"},
      {"draft", "ngram:tokens=0"},
      {"logit_bias", {{"1", 101}}},
      {"logit_bias", Json::array()},
      {"seed", 1.5},
      {"seed", 18446744073709551615u},
      {"stop", ""},
      {"stop", Json::array({"a", 1})},
      {"stop", Json(std::vector<std::string>(17, "x"))},
      {"stop", std::string(1025, 'x')},
      {"stream", "yes"},
      {"echo", 1},
      {"suffix", "x"},
      {"min_tokens", -1},
      {"kv", 7},
      {"kv", false}};
  for (const auto& [field, value] : wrong) {
    const Json error = Answer(kCompletionsPath, with(field, value), 400)["error"];
    EXPECT_THAT(KeysOf(error), ElementsAre("message", "type", "param", "code"));
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], field) << value << " " << error;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(field));
  }
  // null is as good as absent.
  Answer(kCompletionsPath,
         {{"prompt", "x"}, {"max_tokens", nullptr}, {"n", nullptr}, {"stop", nullptr}});
}

TEST_F(CompletionsTest, SaysWhenTheContextIsTooShort) {
  const std::vector<int32_t> ids(250, 300);
  const Json error = Answer(kCompletionsPath, {{"prompt", ids}, {"max_tokens", 7}}, 400)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("maximum context length is 256 tokens. However, you requested 257 tokens"));
  // Without max_tokens the answer gets what is left.
  const Json fits = Answer(kCompletionsPath, Greedy({{"prompt", ids}, {"ignore_eos", true}}));
  EXPECT_EQ(fits["usage"]["completion_tokens"], 6);
  const std::vector<int32_t> long_ids(257, 300);
  EXPECT_EQ(Answer(kCompletionsPath, {{"prompt", long_ids}}, 400)["error"]["code"],
            "context_length_exceeded");
}

}  // namespace
}  // namespace kvlathe::api

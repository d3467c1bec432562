#include "evaluation/task_runs/task_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/sampler.h"
#include "evaluation/metrics.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/overflowing_source.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

// One token a character, but "ab" is a token of its own; BOS in front. With it a prompt that ends
// in "a" and a choice that begins with "b" share fewer tokens than the prompt has.
class LetterTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kBos = 0, kEos = 1, kPair = 2, kNewline = 3, kFirst = 4;
  static constexpr int kVocabulary = kFirst + 95;

  StatusOr<std::vector<int32_t>> TryTokenizeMarked(std::string_view text, bool add_bos,
                                                   std::span<const TextRange>) const override {
    std::vector<int32_t> ids;
    if (add_bos) ids.push_back(kBos);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text.substr(i, 2) == "ab") {
        ids.push_back(kPair);
        ++i;
      } else {
        const char letter = text[i] < 0 ? '?' : text[i];  // of a byte that is not ASCII
        ids.push_back(letter == '\n' ? kNewline : kFirst + letter - ' ');
      }
    }
    return ids;
  }
  std::string TokenBytes(int32_t id, bool) const override {
    if (id == kBos || id == kEos) return "";
    if (id == kPair) return "ab";
    if (id == kNewline) return "\n";
    return std::string(1, static_cast<char>(' ' + id - kFirst));
  }
  std::string Detokenize(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id, false);
    return text;
  }
  int64_t MinTokens(std::string_view text) const override { return std::ssize(text) / 2; }
  int vocab_size() const override { return kVocabulary; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }
};

constexpr int64_t kBudgetBytes = 64 << 20;
constexpr int kContext = 256;

ModelConfig ConfigOfLetters() {
  ModelConfig c = SmallConfig();
  c.vocab_size = LetterTokenizer::kVocabulary;
  c.max_seq_len = kContext;
  return c;
}

class TaskRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto weights = ModelWeights::Load(ConfigOfLetters(), DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
    model_ = Make(-1);
  }
  // A negative rate: without a basis.
  std::unique_ptr<Model> Make(double rate) {
    const ModelBasis basis = rate < 0 ? ModelBasis{} : DrawRandomBasis(2, 2, 32, rate, 1);
    auto model = CreateModel(weights_, PartsOf(rate < 0 ? nullptr : &basis, /*n_sink=*/4));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  PreparedTask Prepare(TaskMetric metric, std::vector<TaskExample> examples) {
    auto task = PrepareTask(metric, std::move(examples), tokenizer_, ConfigOfLetters(), kContext);
    EXPECT_TRUE(task.ok()) << task.status();
    return *std::move(task);
  }
  TaskResult Run(Model* model, const PreparedTask& task, int64_t kv_budget_bytes = kBudgetBytes) {
    auto result = RunTask(model, tokenizer_, task, kv_budget_bytes, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  // What the model says after the prompt, one forward over the whole text for every token.
  std::string Greedy(const std::string& prompt, int n_tokens) {
    HostPool pool(kBudgetBytes);
    std::vector<int32_t> ids = tokenizer_.Tokenize(prompt, true, false);
    const size_t n_prompt = ids.size();
    for (int i = 0; i < n_tokens; ++i) {
      SequenceCache cache(&model_->layout(), &pool);
      EXPECT_TRUE(Prefill(model_.get(), &cache, ids).ok());
      ids.push_back(ArgMax(model_->logits(0)));
    }
    return tokenizer_.Detokenize(std::span(ids).subspan(n_prompt), false);
  }
  // Log-probability of ids[from...], from one forward over all of them.
  double LogLikelihood(const std::vector<int32_t>& ids, size_t from) {
    HostPool pool(kBudgetBytes);
    SequenceCache cache(&model_->layout(), &pool);
    EXPECT_TRUE(cache.Extend(static_cast<int>(ids.size())).ok());
    const SequenceStep step{&cache, ids, SequenceStep::Logits::kAll};
    EXPECT_TRUE(model_->Forward({&step, 1}).ok());
    double sum = 0;
    for (size_t t = from; t < ids.size(); ++t) {
      const auto logits = model_->logits(static_cast<int64_t>(t) - 1);
      double all = 0;
      for (const float v : logits) all += std::exp(v);
      sum += logits[ids[t]] - std::log(all);
    }
    return sum;
  }

  LetterTokenizer tokenizer_;
  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::unique_ptr<Model> model_;
};

TaskExample Example(std::string prompt, std::string reference, std::string stop = "\n\n") {
  return {
      .prompt = std::move(prompt), .references = {std::move(reference)}, .stop = std::move(stop)};
}

TaskExample Choice(std::string prompt, std::string reference, std::vector<std::string> choices) {
  return {.prompt = std::move(prompt),
          .references = {std::move(reference)},
          .choices = std::move(choices)};
}

TEST_F(TaskRunTest, PreparesTokensAndRoom) {
  TaskExample example = Example("cab:", "xyz");
  example.references.push_back("ten letter");
  const PreparedTask task = Prepare(TaskMetric::kExactMatch, {example});
  const PreparedExample& prepared = task.examples[0];
  EXPECT_EQ(prepared.prompt, (std::vector<int32_t>{LetterTokenizer::kBos, 'c' - ' ' + 4,
                                                   LetterTokenizer::kPair, ':' - ' ' + 4}));
  EXPECT_EQ(prepared.max_tokens, 10 + 5 + 8);
  EXPECT_EQ(task.mean_prompt_tokens(), 4);
  TaskExample roomy = Example("cab:", "xyz");
  roomy.room_tokens = 40;
  EXPECT_EQ(Prepare(TaskMetric::kExactMatch, {roomy}).examples[0].max_tokens, 40);
  roomy.room_tokens = 10;  // less than the reference asks for
  EXPECT_EQ(Prepare(TaskMetric::kExactMatch, {roomy}).examples[0].max_tokens, 3 + 1 + 8);
  // Room that the context does not have is left out.
  const PreparedTask tight = Prepare(TaskMetric::kExactMatch,
                                     {Example(std::string(kContext - 1 - 10, 'x'), "0123456789")});
  EXPECT_EQ(tight.examples[0].max_tokens, 10);
}

TEST_F(TaskRunTest, RefusesBeforeAnythingRuns) {
  const auto refusal = [&](std::vector<TaskExample> examples, TaskMetric metric) {
    return PrepareTask(metric, std::move(examples), tokenizer_, ConfigOfLetters(), kContext)
        .status();
  };
  const Status too_long = refusal({Example("a", "b"), Example(std::string(kContext, 'x'), "b")},
                                  TaskMetric::kExactMatch);
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(too_long).find("example 2: "), std::string::npos) << too_long;
  EXPECT_NE(MessageOf(too_long).find("258 tokens"), std::string::npos) << too_long;
  EXPECT_EQ(refusal({}, TaskMetric::kF1).code(), StatusCode::kInvalidArgument);

  ModelConfig small_vocabulary = ConfigOfLetters();
  small_vocabulary.vocab_size = 10;
  const auto foreign =
      PrepareTask(TaskMetric::kF1, {Example("x", "y")}, tokenizer_, small_vocabulary, kContext);
  EXPECT_EQ(foreign.status().code(), StatusCode::kDataLoss);

  TaskExample answer = Choice("x", " a", {" a", " b"});
  answer.answer = 2;
  EXPECT_EQ(refusal({answer}, TaskMetric::kChoice).code(), StatusCode::kInvalidArgument);
  TaskExample choice = Example("x", " a");
  choice.choices = {" a", std::string(kContext, 'c')};
  EXPECT_EQ(refusal({choice}, TaskMetric::kChoice).code(), StatusCode::kInvalidArgument);
}

TEST_F(TaskRunTest, ScoresGreedyTextUpToTheStop) {
  // The stop text is cut out of the middle of what the model says, so that it spans two tokens.
  const std::string prompt = "the river inn";
  const std::string said = Greedy(prompt, 24);
  const std::string stop = said.substr(5, 3);
  const std::string before = said.substr(0, said.find(stop));
  const std::string longer(16, 'r');
  TaskExample stopped = Example(prompt, before, stop);
  stopped.references.push_back(longer);
  const PreparedTask task =
      Prepare(TaskMetric::kEditSimilarity, {stopped, Example(prompt, longer)});
  const TaskResult result = Run(model_.get(), task);
  ASSERT_EQ(result.predictions.size(), 2u);
  EXPECT_EQ(result.predictions[0].output, before);
  // Of several stop texts the first that appears ends the output.
  stopped.stop = "\n\n\n";
  stopped.more_stops = {"\ndef ", stop};
  EXPECT_EQ(
      Run(model_.get(), Prepare(TaskMetric::kEditSimilarity, {stopped})).predictions[0].output,
      before);
  EXPECT_EQ(result.predictions[0].score, 1);
  // Without the stop text generation goes on to max_tokens = 16 + 8 + 8.
  EXPECT_EQ(result.predictions[1].output, Greedy(prompt, 32));
  const double second = result.predictions[1].score;
  EXPECT_LT(second, 1);
  EXPECT_DOUBLE_EQ(result.score, (1 + second) / 2);
  // Two values: the standard error of their mean is half their difference.
  EXPECT_NEAR(result.score_stderr, (1 - second) / 2, 1e-12);
}

TEST_F(TaskRunTest, ManySequencesAtOnceSayWhatEachSaysAlone) {
  std::vector<TaskExample> examples;
  for (int i = 0; i < 40; ++i) {
    examples.push_back(
        Example(std::string(1 + i * 5, static_cast<char>('a' + i % 26)), "0123456789"));
  }
  const TaskResult together = Run(model_.get(), Prepare(TaskMetric::kExactMatch, examples));
  // A budget that holds one or two sequences: they take turns.
  const int64_t little = 2 * SequenceBytes(model_->layout(), kContext);
  const TaskResult in_turn = Run(model_.get(), Prepare(TaskMetric::kExactMatch, examples), little);
  for (size_t i = 0; i < examples.size(); ++i) {
    const TaskResult alone = Run(model_.get(), Prepare(TaskMetric::kExactMatch, {examples[i]}));
    EXPECT_EQ(together.predictions[i].output, alone.predictions[0].output) << i;
    EXPECT_EQ(in_turn.predictions[i].output, alone.predictions[0].output) << i;
  }
}

// What prompts begin with is read once for all of them; each says what it says alone, where it
// reads its whole prompt.
TEST_F(TaskRunTest, PromptsThatBeginAlikeSayWhatEachSaysAlone) {
  std::string solved;
  for (int i = 0; i < 15; ++i) solved += "Q: " + std::to_string(i * 7) + " is?\n";
  std::vector<TaskExample> examples;
  for (int i = 0; i < 20; ++i) {
    examples.push_back(Example(solved + std::string(1 + i, static_cast<char>('b' + i)), "012345"));
  }
  examples.push_back(Example(solved, "the prompt that all others go on from"));
  for (const double rate : {-1.0, 0.5}) {
    const std::unique_ptr<Model> model = Make(rate);
    const TaskResult together = Run(model.get(), Prepare(TaskMetric::kExactMatch, examples));
    double kv_fraction = 0;
    for (size_t i = 0; i < examples.size(); ++i) {
      const TaskResult alone = Run(model.get(), Prepare(TaskMetric::kExactMatch, {examples[i]}));
      EXPECT_EQ(together.predictions[i].output, alone.predictions[0].output) << i;
      kv_fraction += alone.kv_fraction / examples.size();
    }
    EXPECT_NEAR(together.kv_fraction, kv_fraction, 1e-12);
  }
}

TEST_F(TaskRunTest, CountsTheBytesHeldAtTheEnd) {
  const PreparedTask task =
      Prepare(TaskMetric::kExactMatch, {Example(std::string(199, 'x'), "0123")});
  const int n_positions = 200 + task.examples[0].max_tokens - 1;  // the last token is not fed back
  for (const double rate : {-1.0, 0.5}) {
    const std::unique_ptr<Model> model = Make(rate);
    const double expected = static_cast<double>(SequenceBytes(model->layout(), n_positions)) /
                            static_cast<double>(UncompressedBytes(2, 2, 32, n_positions));
    EXPECT_NEAR(Run(model.get(), task).kv_fraction, expected, 1e-12);
  }
}

TEST_F(TaskRunTest, TakesTheMostLikelyChoice) {
  const std::vector<std::string> choices = {" good", " bad", "!", "?", " 7"};
  std::vector<TaskExample> examples;
  std::vector<std::string> best;
  for (const std::string prompt : {"the room was", "the soup was cold and it was", "review 3 :"}) {
    std::map<double, std::string> by_likelihood;
    for (const std::string& choice : choices) {
      const std::vector<int32_t> ids = tokenizer_.Tokenize(prompt + choice, true, false);
      by_likelihood[LogLikelihood(ids, 1 + prompt.size())] = choice;
    }
    best.push_back(by_likelihood.rbegin()->second);
    examples.push_back(Choice(prompt, best.back(), choices));
  }
  examples.push_back(examples[0]);
  examples[3].references = {best[0] == "!" ? "?" : "!"};
  const TaskResult result = Run(model_.get(), Prepare(TaskMetric::kChoice, examples));
  for (size_t i = 0; i < best.size(); ++i) {
    EXPECT_EQ(result.predictions[i].output, best[i]);
    EXPECT_EQ(result.predictions[i].score, 1);
  }
  EXPECT_EQ(result.predictions[3].score, 0);
  EXPECT_DOUBLE_EQ(result.score, 0.75);
}

TEST_F(TaskRunTest, LongChoicesAreWeighedByTheirSum) {
  // All of several tokens, none of which ends the shared prompt: the caches are read again.
  const std::string prompt = "sort 42 17";
  const std::vector<std::string> choices = {" : 17 42", " : 42 17", " is", " of them all"};
  double best = -1e30;
  std::string expected;
  for (const std::string& choice : choices) {
    const double likelihood =
        LogLikelihood(tokenizer_.Tokenize(prompt + choice, true, false), 1 + prompt.size());
    if (likelihood > best) expected = choice;
    best = std::max(best, likelihood);
  }
  const PreparedTask task = Prepare(TaskMetric::kChoice, {Choice(prompt, expected, choices)});
  EXPECT_EQ(Run(model_.get(), task).predictions[0].output, expected);
}

// To a random model tokens are about equally likely. So the choice of one token is the likeliest,
// and by character the one with the most characters to a token, which would be another if bytes
// were counted.
TEST_F(TaskRunTest, ByCharacterALongChoiceWinsThatLosesByItsSum) {
  const std::string prompt = "the inn was";
  const std::vector<std::string> choices = {"x", "notab", "\u00e9ab\u00e9ab"};
  const std::vector<double> n_characters = {1, 5, 6};
  std::vector<double> sums, by_character, by_byte;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer_.Tokenize(prompt + choices[i], true, false);
    sums.push_back(LogLikelihood(ids, 1 + prompt.size()));
    by_character.push_back(sums[i] / n_characters[i]);
    by_byte.push_back(sums[i] / static_cast<double>(choices[i].size()));
  }
  const auto index_of_most = [](const std::vector<double>& values) {
    return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
  };
  const int picked = index_of_most(sums), picked_norm = index_of_most(by_character);
  ASSERT_EQ(picked, 0);
  ASSERT_EQ(picked_norm, 1);
  ASSERT_EQ(index_of_most(by_byte), 2);
  TaskExample by_sum = Choice(prompt, choices[picked], choices);
  TaskExample by_norm = by_sum;
  by_norm.references = {choices[picked_norm]};
  by_norm.answer = picked_norm;
  PreparedTask task = Prepare(TaskMetric::kChoice, {by_sum, by_norm, by_sum});
  for (const bool norm_leads : {false, true}) {
    task.norm_leads = norm_leads;
    const TaskResult result = Run(model_.get(), task);
    for (const TaskPrediction& p : result.predictions) {
      EXPECT_EQ(p.picked, picked);
      EXPECT_EQ(p.picked_norm, picked_norm);
      EXPECT_EQ(p.taken, norm_leads ? picked_norm : picked);
      EXPECT_EQ(p.output, choices[p.taken]);
      ASSERT_EQ(p.log_likelihoods.size(), choices.size());
      for (size_t i = 0; i < choices.size(); ++i) {
        EXPECT_NEAR(p.log_likelihoods[i], sums[i], 1e-3);
      }
    }
    EXPECT_TRUE(result.predictions[0].is_right && result.predictions[1].is_right_norm);
    EXPECT_FALSE(result.predictions[1].is_right || result.predictions[0].is_right_norm);
    ASSERT_TRUE(result.acc.has_value() && result.acc_norm.has_value());
    EXPECT_DOUBLE_EQ(result.acc->mean, 2.0 / 3);
    EXPECT_DOUBLE_EQ(result.acc_norm->mean, 1.0 / 3);
    EXPECT_NEAR(result.acc->standard_error, std::sqrt(2.0 / 9 / 2), 1e-12);
    EXPECT_DOUBLE_EQ(result.score, norm_leads ? 1.0 / 3 : 2.0 / 3);
    EXPECT_NEAR(result.score_stderr, std::sqrt(2.0 / 9 / 2), 1e-12);
  }
}

TEST_F(TaskRunTest, TheFirstOfEqualChoicesIsPicked) {
  TaskExample example = Choice("the inn was", " of", {" of", " of"});
  example.answer = 1;
  const TaskResult result = Run(model_.get(), Prepare(TaskMetric::kChoice, {example}));
  EXPECT_EQ(result.predictions[0].picked, 0);
  EXPECT_EQ(result.predictions[0].picked_norm, 0);
  EXPECT_EQ(result.score, 0);  // the answer is the second, though it reads the same
}

TEST_F(TaskRunTest, ChoicesWithContextsOfTheirOwnAreWeighedBehindThem) {
  TaskExample example{
      .prompt = "A cup and a plate: the ",
      .references = {" is round."},
      .choices = {" is round.", " is round."},
      .choice_prompts = {"A cup and a plate: the cup", "A cup and a plate: the plate"},
      .answer = 0};
  const auto likelihood = [&](const TaskExample& of, size_t i) {
    const std::string& prompt = of.choice_prompts[i];
    return LogLikelihood(tokenizer_.Tokenize(prompt + of.choices[i], true, false),
                         1 + prompt.size());
  };
  // Without a BOS the contexts may begin with different tokens; here the first is BOS.
  TaskExample apart = example;
  apart.choice_prompts = {"cup", "plate"};
  const PreparedTask task = Prepare(TaskMetric::kChoice, {example, apart});
  EXPECT_EQ(task.examples[0].prompt, tokenizer_.Tokenize(example.prompt, true, false));
  EXPECT_EQ(task.examples[0].questions[0].n_context, (std::vector<int>{3, 5}));
  EXPECT_EQ(task.examples[1].prompt, (std::vector<int32_t>{LetterTokenizer::kBos}));
  const TaskResult result = Run(model_.get(), task);
  for (size_t e = 0; e < 2; ++e) {
    const TaskPrediction& p = result.predictions[e];
    const TaskExample& of = e == 0 ? example : apart;
    EXPECT_NEAR(p.log_likelihoods[0], likelihood(of, 0), 1e-3);
    EXPECT_NEAR(p.log_likelihoods[1], likelihood(of, 1), 1e-3);
    EXPECT_EQ(p.picked, likelihood(of, 0) < likelihood(of, 1));
    EXPECT_EQ(p.is_right, p.picked == 0);
    EXPECT_EQ(p.score, p.is_right);
    EXPECT_EQ(p.picked_norm, -1);
  }
  EXPECT_TRUE(result.acc.has_value());
  EXPECT_FALSE(result.acc_norm.has_value());
}

TEST_F(TaskRunTest, EveryEarlierAnswerMustBeTheLikeliestToo) {
  for (const std::vector<std::string>& choices :
       {std::vector<std::string>{"y", "n"}, {" yes", " no", " perhaps"}, {"y", "nay"}}) {
    // The likeliest answer to each of three questions, with the right ones (here the last choice)
    // between them.
    const std::vector<std::string> questions = {"of the inn", ". of the barn", ". of the ship"};
    TaskExample example{.references = {choices.back()}, .choices = choices, .stop = "\n"};
    std::string taken, right;
    for (const std::string& question : questions) {
      if (!example.prompt.empty()) {
        example.earlier_answers.push_back(
            {example.prompt.size(), example.prompt.size() + choices.back().size()});
        example.prompt += choices.back();
      }
      example.prompt += question;
      std::map<double, std::string> by_likelihood;
      for (const std::string& choice : choices) {
        const std::vector<int32_t> ids = tokenizer_.Tokenize(example.prompt + choice, true, false);
        by_likelihood[LogLikelihood(ids, 1 + example.prompt.size())] = choice;
      }
      taken += by_likelihood.rbegin()->second;
      right += choices.back();
    }
    const TaskResult result = Run(model_.get(), Prepare(TaskMetric::kChoice, {example}));
    EXPECT_EQ(result.predictions[0].output, taken);
    EXPECT_EQ(result.score, taken == right ? 1 : 0);
    EXPECT_EQ(result.predictions[0].picked, -1);
    EXPECT_EQ(result.acc->mean, result.score);
    EXPECT_FALSE(result.acc_norm.has_value());
  }
}

TEST_F(TaskRunTest, OneWrongEarlierAnswerFailsTheExample) {
  // Whatever the model says first is right in one of these, and what it says behind it in both.
  const std::vector<std::string> choices = {"y", "n"};
  double score = 0;
  for (const std::string& first : choices) {
    TaskExample example{.prompt = "of the inn" + first,
                        .choices = choices,
                        .stop = "\n",
                        .earlier_answers = {{10, 11}}};
    const bool says_y = LogLikelihood(tokenizer_.Tokenize(example.prompt + "y", true, false), 12) >
                        LogLikelihood(tokenizer_.Tokenize(example.prompt + "n", true, false), 12);
    example.references = {says_y ? "y" : "n"};
    score += Run(model_.get(), Prepare(TaskMetric::kChoice, {example})).score;
  }
  EXPECT_EQ(score, 1);
}

TEST_F(TaskRunTest, SaysWhatOfCallsIsRight) {
  const std::string call = R"({"name":"a","arguments":{"x":1}})";
  // What is generated is no JSON, so a prompt's whole output is not either.
  const TaskResult result =
      Run(model_.get(), Prepare(TaskMetric::kToolCall, {Example("of the inn", call)}));
  ASSERT_TRUE(result.calls.has_value());
  const CallMarks marks = JudgeCall(result.predictions[0].output, call);
  EXPECT_EQ(result.calls->is_json, marks.is_json ? 1 : 0);
  EXPECT_EQ(result.calls->names_tool, marks.names_tool ? 1 : 0);
  EXPECT_EQ(result.calls->has_arguments, marks.has_arguments ? 1 : 0);
  EXPECT_FALSE(
      Run(model_.get(), Prepare(TaskMetric::kF1, {Example("of the inn", call)})).calls.has_value());
}

TEST_F(TaskRunTest, AnAnswerHasNoMoreTokensThanItMay) {
  TaskExample example = Example("of the inn", "a reference of some length");
  example.stop = "~~";
  example.room_tokens = example.most_tokens = 5;
  const PreparedTask task = Prepare(TaskMetric::kF1, {example});
  EXPECT_EQ(task.examples[0].max_tokens, 5);
  EXPECT_LE(Run(model_.get(), task).predictions[0].tokens->size(), 5u);
}

TEST_F(TaskRunTest, ATokenAcrossTheBoundaryBelongsToTheChoice) {
  // "..ca" + "b" is the tokens c, ab: the prompt that both choices share ends in c.
  const PreparedTask task = Prepare(TaskMetric::kChoice, {Choice("x ca", "b", {"b", "t"})});
  const PreparedExample& example = task.examples[0];
  EXPECT_EQ(example.prompt, tokenizer_.Tokenize("x c", true, false));
  EXPECT_EQ(example.questions[0].choices[0], std::vector<int32_t>{LetterTokenizer::kPair});
  EXPECT_EQ(example.questions[0].choices[1], tokenizer_.Tokenize("at", false, false));
  EXPECT_TRUE(Run(model_.get(), task).predictions[0].output.size() == 1);
}

// Half of the examples is right. The bound on the mean falls by 1/40 with every wrong one.
TEST_F(TaskRunTest, GivesUpWhereTheLeastScoreIsOutOfReach) {
  for (const bool chooses : {false, true}) {
    std::vector<TaskExample> examples;
    for (int i = 0; i < 40; ++i) {
      const std::string prompt(1 + i, static_cast<char>('a' + i % 26));
      const std::string said = Greedy(prompt, 8);
      TaskExample& example =
          examples.emplace_back(Example(prompt, i % 2 == 0 ? said : "no such text"));
      if (chooses) example.choices = {said, example.references[0] == said ? "!" : "no such text"};
      example.stop = chooses ? "" : "~~";
    }
    const TaskMetric metric = chooses ? TaskMetric::kChoice : TaskMetric::kEditSimilarity;
    const PreparedTask task = Prepare(metric, examples);
    const TaskResult whole = Run(model_.get(), task);
    EXPECT_FALSE(whole.gave_up);
    const auto run = [&](double least) {
      auto result = RunTask(model_.get(), tokenizer_, task, kBudgetBytes, nullptr, least);
      EXPECT_TRUE(result.ok()) << result.status();
      return *std::move(result);
    };
    // A score that is just reached: everything runs.
    const TaskResult reached = run(whole.score - 1e-9);
    EXPECT_FALSE(reached.gave_up);
    EXPECT_EQ(reached.score, whole.score);
    EXPECT_EQ(reached.score_stderr, whole.score_stderr);
    EXPECT_EQ(reached.kv_fraction, whole.kv_fraction);
    // One that is not: the result lies between the true score and what was asked for.
    const double least = (1 + whole.score) / 2;
    const TaskResult missed = run(least);
    EXPECT_TRUE(missed.gave_up);
    EXPECT_LT(missed.score, least);
    EXPECT_GE(missed.score, whole.score);
    EXPECT_EQ(missed.score_stderr, 0);
    int n_run = 0;
    for (size_t i = 0; i < examples.size(); ++i) n_run += !missed.predictions[i].output.empty();
    EXPECT_LT(n_run, 40);
    EXPECT_GE(n_run, 1);
  }
}

TEST_F(TaskRunTest, TellsHowFarItIs) {
  std::vector<double> told;
  const Progress progress = [&](const std::string&, double fraction) { told.push_back(fraction); };
  const PreparedTask task =
      Prepare(TaskMetric::kExactMatch, {Example("a", "b"), Example("c", "d")});
  ASSERT_TRUE(RunTask(model_.get(), tokenizer_, task, kBudgetBytes, progress).ok());
  EXPECT_EQ(told, (std::vector<double>{0, 0.5, 1}));
}

// The model computes infinite values for '@'.
TEST_F(TaskRunTest, LogitsThatAreNotFiniteFailTheTaskAndNameTheExample) {
  auto weights = ModelWeights::Load(
      ConfigOfLetters(), DType::kF32,
      std::make_unique<OverflowingSource>(3, LetterTokenizer::kFirst + '@' - ' '),
      MakeMachine(&threads_, SelectIsa().value()));
  ASSERT_TRUE(weights.ok()) << weights.status();
  weights_ = *std::move(weights);
  model_ = Make(-1);
  const auto run = [&](TaskMetric metric, const std::vector<TaskExample>& examples) {
    return RunTask(model_.get(), tokenizer_, Prepare(metric, examples), kBudgetBytes, nullptr)
        .status();
  };
  const auto expect_second = [](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_TRUE(MessageOf(status).starts_with("example 2: ")) << status;
    EXPECT_NE(MessageOf(status).find("not finite"), std::string::npos) << status;
  };
  const TaskExample sound = Example("at the inn", "x");
  EXPECT_TRUE(run(TaskMetric::kExactMatch, {sound}).ok());
  expect_second(run(TaskMetric::kExactMatch, {sound, Example("look @ me", "x"), sound}));
  for (const std::vector<std::string>& choices :
       {std::vector<std::string>{"y", "n"}, {" yes", " no"}}) {
    const TaskExample choice = Choice("of the inn", choices[0], choices);
    TaskExample overflowing = choice;
    EXPECT_TRUE(run(TaskMetric::kChoice, {choice}).ok());
    overflowing.prompt = "of @ inn";
    expect_second(run(TaskMetric::kChoice, {choice, overflowing}));
    overflowing = choice;
    overflowing.choices.push_back(" @t");
    expect_second(run(TaskMetric::kChoice, {choice, overflowing}));
  }
}

TEST_F(TaskRunTest, ABudgetThatHoldsNoSequenceIsAnError) {
  const PreparedTask task = Prepare(TaskMetric::kExactMatch, {Example("a", "b")});
  const auto result = RunTask(model_.get(), tokenizer_, task, 1 << 10, nullptr);
  EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvlathe

// Everything that a cache can be and do, on a machine whose memory the host cannot touch and which
// runs what it is asked for as late as it may (cpu/biting/biting_machine.h): whatever reads or
// writes rows, weights or activations past the verbs ends this program.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "../sequence_cases.h"
#include "cpu/biting/biting_machine.h"
#include "kv/cache_layout.h"
#include "lived_sequence.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::AnswersThatOutgrow;
using testing::LiveThrough;
using testing::MakeCaseModel;
using testing::SequenceCase;

class GuardedCache : public ::testing::TestWithParam<SequenceCase> {
 protected:
  ThreadPool threads_{2};
  std::shared_ptr<Machine> biting_ = std::make_shared<BitingMachine>(&threads_);
};

TEST_P(GuardedCache, LivesAsOnAMachineThatDoesNotBite) {
  const std::vector<std::string> logits = LiveThrough(GetParam(), biting_, 210);
  ASSERT_EQ(logits.size(), 5u);
  EXPECT_TRUE(logits == LiveThrough(GetParam(), MakeMachine(&threads_, Isa::kScalar), 210));
  // The restored sequence went on as the original does.
  EXPECT_TRUE(logits[2] == logits[4]);
}

// Long enough for the budgets of the recorded specs.
class RecordedSpec : public GuardedCache {};
TEST_P(RecordedSpec, LivesOnAMachineThatBites) {
  const std::vector<std::string> logits = LiveThrough(GetParam(), biting_, 330);
  ASSERT_EQ(logits.size(), 5u);
  EXPECT_TRUE(logits[2] == logits[4]);
}

INSTANTIATE_TEST_SUITE_P(Specs, RecordedSpec, ::testing::ValuesIn(testing::RecordedCases()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Specs, GuardedCache, ::testing::ValuesIn(testing::SequenceCases()),
                         [](const auto& test) { return test.param.name; });

TEST(GuardedEngine, RequestsThatOutgrowTheBudgetAnswerAsOnAMachineThatDoesNotBite) {
  ThreadPool threads(2);
  const auto biting = MakeCaseModel({"None", "none"}, std::make_shared<BitingMachine>(&threads));
  const auto plain = MakeCaseModel({"None", "none"}, &threads, Isa::kScalar);
  const int64_t budget = 2 * SequenceBytes(plain->layout(), 250);
  const auto answers = AnswersThatOutgrow(biting.get(), budget);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answers[i].size(), 60u);
  EXPECT_EQ(answers[4].size(), 20u);
  EXPECT_EQ(answers, AnswersThatOutgrow(plain.get(), budget));
}

}  // namespace
}  // namespace kvlathe

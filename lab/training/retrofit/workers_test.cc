// Two workers take the steps that one takes alone.
#include "training/retrofit/workers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <utility>

#include "training/retrofit/testing/trainer_fixture.h"

namespace kvlathe {
namespace {

// A place that nobody listens on at this moment.
std::string FreePlace() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, any, size), 0);
  EXPECT_EQ(::getsockname(fd, any, &size), 0);
  ::close(fd);
  return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
}

class WorkersTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    if (!Workers::AreAvailable()) GTEST_SKIP() << "a build without gloo";
  }
  // `run` in both workers, each in a thread, with a trainer of its own.
  void RunBoth(const TrainingRecipe& recipe, TrainerOptions options,
               const std::function<void(Trainer*, Workers*)>& run) {
    const std::string meet = FreePlace();
    const auto work = [&](int index) {
      at::set_num_threads(1);
      const auto workers =
          Workers::Join({.count = 2, .index = index, .meet = meet, .timeout_s = 60});
      ASSERT_TRUE(workers.ok()) << workers.status();
      TrainerOptions own = options;
      own.workers = workers->get();
      const auto trainer = Trainer::Create(&recipe, corpus_.get(), own);
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      run(trainer->get(), workers->get());
    };
    std::thread second(work, 1);
    work(0);
    second.join();
  }
};

TEST_F(WorkersTest, TwoTakeTheStepsOfOne) {
  nlohmann::json json = RecipeJson(false, "llama");
  json["dmc"] = {{"compression", 2}, {"ramp_steps", 20}, {"zero_out_steps", 2}, {"offset", 1}};
  const TrainingRecipe dmc = RecipeOfStage(*ParseRecipe(json, "test"), DmcStage::kRamp);
  for (const TrainingRecipe* recipe : {&std::as_const(recipes_[1]), &dmc}) {
    std::optional<DmcStage> stage;
    if (recipe->dmc.has_value()) stage = DmcStage::kRamp;
    const TrainerOptions options = {.dmc_stage = stage};
    const auto alone = Trainer::Create(recipe, corpus_.get(), options);
    ASSERT_TRUE(alone.ok()) << alone.status();
    Run(alone->get(), 12);
    RunBoth(*recipe, options, [&](Trainer* trainer, Workers* workers) {
      Run(trainer, 12);
      EXPECT_EQ(*workers->AnyOf(workers->index() == 1), true);
      EXPECT_EQ(*workers->AnyOf(false), false);
      for (size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(trainer->curve()[i].loss, (*alone)->curve()[i].loss) << i;
        EXPECT_EQ(trainer->curve()[i].kept_share, (*alone)->curve()[i].kept_share) << i;
      }
      for (size_t i = 0; i < trainer->decoder().parameters().size(); ++i) {
        const auto& [name, parameter] = trainer->decoder().parameters()[i];
        EXPECT_TRUE(torch::equal(parameter, (*alone)->decoder().parameters()[i].second)) << name;
      }
    });
  }
}

TEST_F(WorkersTest, AllStopWhereOneFails) {
  RunBoth(recipes_[0], {}, [&](Trainer* trainer, Workers* workers) {
    if (workers->index() == 1) {
      const torch::NoGradGuard no_grad;
      torch::Tensor(trainer->decoder().parameters()[0].second).fill_(NAN);
    }
    const Status status = trainer->Step();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(
        MessageOf(status).find(workers->index() == 1 ? "micro batch 2 of 2" : "another worker"),
        std::string::npos)
        << status;
  });
}

TEST_F(WorkersTest, AWorkerThatDoesNotComeIsAnError) {
  const Status status =
      Workers::Join({.count = 2, .index = 0, .meet = FreePlace(), .timeout_s = 1}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(MessageOf(status).find("worker 0 of 2 does not meet the others"), std::string::npos);
}

TEST_F(WorkersTest, AWorkerThatIsGoneIsAnError) {
  RunBoth(recipes_[0], {}, [&](Trainer* trainer, Workers* workers) {
    if (workers->index() == 1) return;
    EXPECT_EQ(trainer->Step().code(), StatusCode::kUnavailable);
  });
}

// Says how many there are, and adds up nothing.
class CountedWorkers : public Workers {
 public:
  explicit CountedWorkers(int count) : Workers(count, 0) {}
  Status AddUp(const std::vector<torch::Tensor>&) override { return OkStatus(); }
};

TEST_F(TrainerTest, RefusesWorkersThatCannotShareTheWork) {
  CountedWorkers three(3), two(2);
  const auto create = [&](const TrainerOptions& options) {
    return Trainer::Create(&recipes_[0], corpus_.get(), options).status();
  };
  EXPECT_EQ(create({.workers = &three}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create({.budget_seconds = 1, .workers = &two}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(create({.workers = &two}).ok());
  for (const WorkersOptions& wrong : {WorkersOptions{.count = 1, .meet = "127.0.0.1:29500"},
                                      {.count = 2, .index = 2, .meet = "127.0.0.1:29500"},
                                      {.count = 2, .meet = ""},
                                      {.count = 2, .meet = "127.0.0.1"},
                                      {.count = 2, .meet = "127.0.0.1:x"},
                                      {.count = 2, .meet = "127.0.0.1:65536"}}) {
    EXPECT_EQ(Workers::Join(wrong).status().code(), StatusCode::kInvalidArgument) << wrong.meet;
  }
}

}  // namespace
}  // namespace kvlathe

#include "runtime/machines/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;
using Kind = DeviceChoice::Kind;

TEST(ParseDevice, ReadsTheProcessorsAndGpusByTheirNumbers) {
  EXPECT_EQ(ParseDevice("cpu").value(), (DeviceChoice{Kind::kCpu, 0}));
  EXPECT_EQ(ParseDevice("cuda").value(), (DeviceChoice{Kind::kCuda, 0}));
  EXPECT_EQ(ParseDevice("cuda:0").value(), (DeviceChoice{Kind::kCuda, 0}));
  EXPECT_EQ(ParseDevice("cuda:17").value(), (DeviceChoice{Kind::kCuda, 17}));
}

TEST(ParseDevice, SaysWhatIsRightInPlaceOfAnythingElse) {
  for (const char* text : {"", "gpu", "CUDA", "cpu:0", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1",
                           "cuda1", "cuda:99999999999", "cuda:0,cuda:1"}) {
    const Status status = ParseDevice(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(MessageOf(status), HasSubstr("give cpu, cuda, or cuda:N")) << text;
  }
}

TEST(DeviceText, IsWhatParseDeviceReads) {
  for (const DeviceChoice& device :
       {DeviceChoice{}, DeviceChoice{Kind::kCuda, 0}, DeviceChoice{Kind::kCuda, 3}}) {
    EXPECT_EQ(ParseDevice(DeviceText(device)).value(), device);
  }
}

TEST(MakeDeviceMachine, IsRefusedWithoutAMakerAndAsksTheMakerForTheGpuOfTheNumber) {
  const DeviceChoice gpu = {Kind::kCuda, 2};
  EXPECT_TRUE(CheckHasMachines({}).ok());
  EXPECT_EQ(CheckHasMachines(gpu).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(MakeDeviceMachine(gpu, {}).status()),
              HasSubstr("cuda:2: this build has no CUDA"));

  ThreadPool pool(1);
  SetCudaMachines([](const MachineRequest& request) -> StatusOr<MadeMachine> {
    return MadeMachine{MakeMachine(request.pool, request.isa),
                       "GPU " + std::to_string(request.number), request.memory_bytes};
  });
  const StatusOr<MadeMachine> made = MakeDeviceMachine(gpu, {.memory_bytes = 5, .pool = &pool});
  SetCudaMachines(nullptr);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->name, "GPU 2");
  EXPECT_EQ(made->memory_bytes, 5);
  EXPECT_EQ(&made->machine->host_threads(), &pool);
}

}  // namespace
}  // namespace kvlathe

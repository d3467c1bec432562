#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace kvlathe {
namespace {

class SelectIsaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* forced = std::getenv("KVLATHE_ISA")) saved_ = forced;
  }
  void TearDown() override {
    if (saved_.empty()) {
      unsetenv("KVLATHE_ISA");
    } else {
      setenv("KVLATHE_ISA", saved_.c_str(), 1);
    }
  }
  std::string saved_;
};

TEST_F(SelectIsaTest, TakesTheBestByDefault) {
  unsetenv("KVLATHE_ISA");
  ASSERT_TRUE(SelectIsa().ok());
  EXPECT_EQ(*SelectIsa(), AvailableIsas().back());
}

TEST_F(SelectIsaTest, ObeysTheEnvironment) {
  setenv("KVLATHE_ISA", "scalar", 1);
  ASSERT_TRUE(SelectIsa().ok());
  EXPECT_EQ(*SelectIsa(), Isa::kScalar);
}

TEST_F(SelectIsaTest, TakesEveryOneOfTheMachineByName) {
  for (Isa isa : AvailableIsas()) {
    setenv("KVLATHE_ISA", std::string(IsaName(isa)).c_str(), 1);
    ASSERT_TRUE(SelectIsa().ok()) << IsaName(isa);
    EXPECT_EQ(*SelectIsa(), isa);
  }
}

TEST_F(SelectIsaTest, RefusesAnUnknownName) {
  setenv("KVLATHE_ISA", "neon", 1);
  EXPECT_EQ(SelectIsa().status().code(), StatusCode::kInvalidArgument);
}

TEST(AvailableIsas, StartsWithScalarAndLeavesNoneOut) {
  const std::vector<Isa>& isas = AvailableIsas();
  for (size_t i = 0; i < isas.size(); ++i) EXPECT_EQ(static_cast<size_t>(isas[i]), i);
}

}  // namespace
}  // namespace kvlathe

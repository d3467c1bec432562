#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/mpi_communicator.h"

namespace kvlathe {
namespace {

TEST(MpiAbsent, RefusesToBeARankOfAGroup) {
  ::unsetenv("PMIX_RANK");
  ::unsetenv("PMI_RANK");
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  const auto joined = JoinMpi();
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(joined.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(joined.status()), testing::HasSubstr("built without MPI"));
}

TEST(MpiAbsent, WithoutMpirunAProgramIsAGroupOfOne) {
  const auto alone = JoinMpi();
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ((*alone)->size(), 1);
  float value = 3;
  EXPECT_TRUE((*alone)->AllReduce({&value, 1}).ok());
  EXPECT_EQ(value, 3);
}

}  // namespace
}  // namespace kvlathe

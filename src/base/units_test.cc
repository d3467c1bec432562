#include "base/units.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

TEST(ParseBytes, ReadsWhatPeopleWrite) {
  EXPECT_EQ(*ParseBytes("1000"), 1000);
  EXPECT_EQ(*ParseBytes("512MiB"), 512ll << 20);
  EXPECT_EQ(*ParseBytes("1.5G"), 3ll << 29);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000ll);
  EXPECT_EQ(*ParseBytes("64k"), 65536);
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text : {"", "x", "-1", "1X", "1MiBs", "nan", "inf", "1e30"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3ll << 30), "3 GiB");
}

TEST(RoundUp, GoesToTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 64), 0);
  EXPECT_EQ(RoundUp(1, 64), 64);
  EXPECT_EQ(RoundUp(64, 64), 64);
}

}  // namespace
}  // namespace kvlathe

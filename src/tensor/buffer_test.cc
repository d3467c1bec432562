#include "tensor/buffer.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

TEST(Buffer, IsZeroedAndAligned) {
  auto buffer = Buffer::Allocate(5 << 20, "a test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
  for (int64_t i = 0; i < buffer->n_bytes(); i += 997) ASSERT_EQ(buffer->data()[i], std::byte{0});
}

TEST(Buffer, RefusesWhatTheMachineDoesNotHave) {
  auto buffer = Buffer::Allocate(int64_t{1} << 60, "a test");
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(buffer.status()).find("a test"), std::string::npos);
}

TEST(Buffer, GrowsOnly) {
  Buffer buffer;
  ASSERT_TRUE(buffer.EnsureSize(100, "a test").ok());
  const std::byte* first = buffer.data();
  ASSERT_TRUE(buffer.EnsureSize(50, "a test").ok());
  EXPECT_EQ(buffer.data(), first);
  ASSERT_TRUE(buffer.EnsureSize(1 << 20, "a test").ok());
  EXPECT_GE(buffer.n_bytes(), 1 << 20);
}

}  // namespace
}  // namespace kvlathe

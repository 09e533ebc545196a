#include "engine/cpu.h"

#include "absl/status/status.h"
#include "engine/gemm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

TEST(Cpu, ActiveIsaIsOneOfTheTwo) { EXPECT_THAT(ActiveIsa(), ::testing::AnyOf("avx2", "avx512")); }

TEST(Cpu, UnknownNameIsInvalid) {
  const absl::Status status = PinIsa("sse2");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "isa: \"sse2\" is not one of native, avx2, avx512");
}

TEST(Cpu, PinAfterFirstProductFails) {
  ASSERT_TRUE(GemmInitThread().ok());
  const absl::Status status = PinIsa(ActiveIsa());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

}  // namespace
}  // namespace attnd::engine

#include "engine/cpu.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/gemm.h"
#include "engine/simd/targets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
// The order matters: after targets.h.
#include "hwy/targets.h"

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

// Asking for the instruction set, or asking for another one in vain, once had every loop run with
// the best there is from then on.
TEST(Cpu, AskingForTheIsaLeavesThePin) {
  ASSERT_FALSE(PinIsa("sse2").ok());
  ASSERT_TRUE(GemmInitThread().ok());
  ASSERT_FALSE(PinIsa(ActiveIsa()).ok());
  // In the table of a loop that is compiled for both.
  const std::size_t chosen = hwy::GetChosenTarget().GetIndex();
  const std::int64_t target = ActiveIsa() == "avx2" ? HWY_AVX2 : HWY_AVX3;
  EXPECT_EQ(std::int64_t{1} << chosen, HWY_CHOSEN_TARGET_SHIFT(target));
}

}  // namespace
}  // namespace attnd::engine

// Pins the instruction set named by ATTND_ISA before any test runs, so that one program tests every
// set it is run with. Fails the run when the processor lacks it.
#include <cstdlib>

#include "engine/cpu.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

class IsaEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* isa = std::getenv("ATTND_ISA");
    const absl::Status status = PinIsa(isa == nullptr ? "native" : isa);
    ASSERT_TRUE(status.ok()) << status;
    if (isa != nullptr) {
      ASSERT_EQ(ActiveIsa(), isa);
    }
  }
};

// GoogleTest owns it.
[[maybe_unused]] const ::testing::Environment* const kRegistered =
    ::testing::AddGlobalTestEnvironment(new IsaEnvironment);

}  // namespace
}  // namespace attnd::engine

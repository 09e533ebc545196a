// Which calls the registry ends, and when it deletes them.
#include "server/call_registry.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kPatience = 30 * kSecond;

// What has happened to a call; outlives it.
struct Fate {
  int drained = 0;
  int ended = 0;
  bool deleted = false;
  // Stands for what gRPC deletes once the call has retired.
  std::shared_ptr<int> context = std::make_shared<int>(0);
};

// A call that is stuck from `answered_nanos` + patience on.
class FakeCall final : public OpenCall {
 public:
  FakeCall(Fate& fate, std::int64_t answered_nanos, std::function<void(FakeCall*)> at_end = {})
      : fate_(fate), answered_nanos_(answered_nanos), at_end_(std::move(at_end)) {}
  ~FakeCall() override { fate_.deleted = true; }

  void Drain() override { ++fate_.drained; }
  bool IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) override {
    return now_nanos - answered_nanos_ >= patience_nanos;
  }
  void HoldToEnd() override { held_ = fate_.context; }
  void EndStuck() override {
    ++fate_.ended;
    const std::shared_ptr<int> held = std::move(held_);
    EXPECT_NE(held, nullptr);
    if (at_end_) at_end_(this);
  }

 private:
  Fate& fate_;
  const std::int64_t answered_nanos_;
  const std::function<void(FakeCall*)> at_end_;
  std::shared_ptr<int> held_;
};

TEST(CallRegistry, EndsAStuckCallAndNotAHealthyOne) {
  CallRegistry registry;
  Fate stuck;
  Fate healthy;
  auto* const slow = new FakeCall(stuck, 0);
  auto* const quick = new FakeCall(healthy, kSecond);
  registry.Add(slow);
  registry.Add(quick);
  registry.EndStuck(kPatience - 1, kPatience);
  EXPECT_EQ(stuck.ended, 0);
  registry.EndStuck(kPatience, kPatience);
  EXPECT_EQ(stuck.ended, 1);
  EXPECT_EQ(healthy.ended, 0);
  EXPECT_FALSE(stuck.deleted) << "until it retires";
  registry.Retire(slow);
  EXPECT_TRUE(stuck.deleted);
  EXPECT_FALSE(healthy.deleted);
  // What has retired is not asked any more.
  registry.EndStuck(kPatience + kSecond - 1, kPatience);
  EXPECT_EQ(stuck.ended, 1);
  EXPECT_EQ(healthy.ended, 0);
  registry.Retire(quick);
  EXPECT_TRUE(healthy.deleted);
  registry.EndStuck(100 * kPatience, kPatience);
  EXPECT_EQ(healthy.ended, 0);
}

TEST(CallRegistry, ACallThatRetiresWhileItIsEndedIsDeletedOnceAfterwards) {
  CallRegistry registry;
  Fate fate;
  bool deleted_within = true;
  auto* const call = new FakeCall(fate, 0, [&](FakeCall* self) {
    registry.Retire(self);
    deleted_within = fate.deleted;
  });
  Fate other;
  auto* const next = new FakeCall(other, 0);
  registry.Add(call);
  registry.Add(next);
  registry.EndStuck(kPatience, kPatience);
  EXPECT_FALSE(deleted_within);
  EXPECT_TRUE(fate.deleted);
  EXPECT_EQ(fate.ended, 1);
  EXPECT_EQ(other.ended, 1) << "the others are ended all the same";
  EXPECT_FALSE(other.deleted);
  registry.Retire(next);
}

// Ending one call may end another that was found stuck too; it was then cancelled through a context
// that gRPC had deleted.
TEST(CallRegistry, ACallThatRetiresBeforeItsTurnToBeEndedStillHoldsWhatThatNeeds) {
  CallRegistry registry;
  Fate first;
  Fate second;
  std::weak_ptr<int> context = second.context;
  bool alive = false;
  auto* const later = new FakeCall(second, 0, [&](FakeCall*) { alive = !context.expired(); });
  auto* const earlier = new FakeCall(first, 0, [&](FakeCall*) {
    registry.Retire(later);
    second.context = nullptr;
  });
  registry.Add(earlier);
  registry.Add(later);
  registry.EndStuck(kPatience, kPatience);
  EXPECT_EQ(second.ended, 1);
  EXPECT_TRUE(alive);
  EXPECT_TRUE(context.expired()) << "and no longer than that";
  EXPECT_TRUE(second.deleted);
  EXPECT_FALSE(first.deleted);
  registry.Retire(earlier);
}

TEST(CallRegistry, DrainsCallsOnceAndThoseThatComeLaterAtOnce) {
  CallRegistry registry;
  Fate before;
  Fate after;
  Fate gone;
  auto* const early = new FakeCall(before, 0);
  auto* const late = new FakeCall(after, 0);
  auto* const retired = new FakeCall(gone, 0);
  registry.Add(early);
  registry.Add(retired);
  registry.Retire(retired);
  EXPECT_EQ(before.drained, 0);
  registry.Drain();
  EXPECT_EQ(before.drained, 1);
  registry.Add(late);
  EXPECT_EQ(after.drained, 1);
  EXPECT_EQ(before.drained, 1);
  EXPECT_EQ(gone.drained, 0);
  registry.Retire(early);
  registry.Retire(late);
}

}  // namespace
}  // namespace attnd::server

// The fair scheduler: order within a job, fairness between sessions and tenants, chains in
// parallel, no lost wake-up, and a stop that waits.
#include "server/scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/clock.h"
#include "server/mutex.h"
#include "tests/server/fake_clock.h"

namespace attnd::server {
namespace {

#ifdef ATTND_SANITIZED
constexpr int kStressJobs = 2'000;
#else
constexpr int kStressJobs = 20'000;
#endif

// A gate that workers wait at until a test opens it.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    opened_.SignalAll();
  }
  void Wait() {
    MutexLock lock(&mutex_);
    while (!open_) opened_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

void Spin(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Advances `quanta` times, then ends.
class Quanta final : public Job {
 public:
  Quanta(int quanta, std::function<void(int)> each, std::function<void()> at_end = {})
      : quanta_(quanta), each_(std::move(each)), at_end_(std::move(at_end)) {}
  Next Advance(engine::Scratch& /*scratch*/) override {
    each_(done_);
    if (++done_ < quanta_) return Next::kAdvance;
    if (at_end_) at_end_();
    return Next::kEnd;
  }

 private:
  const int quanta_;
  int done_ = 0;
  const std::function<void(int)> each_;
  const std::function<void()> at_end_;
};

// Phases of chains, each chain of several quanta; checks all that the scheduler promises.
class Phases final : public Job {
 public:
  Phases(std::vector<int> chains, int quanta, std::chrono::microseconds spin,
         std::atomic<int>* errors, std::atomic<int>* ended)
      : phases_(std::move(chains)), quanta_(quanta), spin_(spin), errors_(errors), ended_(ended) {}

  Next Advance(engine::Scratch& /*scratch*/) override {
    if (advancing_.exchange(true)) ++*errors_;
    // All chains of the phase before have ended, each after all of its quanta.
    for (const auto& chain : state_) {
      if (chain->quanta != quanta_ || chain->running) ++*errors_;
    }
    state_.clear();
    Next next = Next::kEnd;
    if (phase_ < phases_.size()) {
      for (int i = 0; i < phases_[phase_]; ++i) state_.push_back(std::make_unique<Chain>());
      ++phase_;
      next = Next::kChains;
    } else {
      ++*ended_;
    }
    advancing_ = false;
    return next;
  }
  std::int64_t chains() const override { return static_cast<std::int64_t>(state_.size()); }
  bool RunChain(std::int64_t chain, engine::Scratch& scratch) override {
    scratch.Take(64)[0] = 1;
    if (advancing_ || chain < 0 || chain >= chains()) ++*errors_;
    Chain& state = *state_[static_cast<std::size_t>(chain)];
    if (state.running.exchange(true)) ++*errors_;
    if (spin_.count() > 0) Spin(spin_);
    const bool over = ++state.quanta == quanta_;
    if (state.quanta > quanta_) ++*errors_;
    state.running = false;
    return over;
  }

 private:
  struct Chain {
    std::atomic<bool> running{false};
    int quanta = 0;  // one thread at a time, ordered by the scheduler
  };
  const std::vector<int> phases_;
  const int quanta_;
  const std::chrono::microseconds spin_;
  std::atomic<int>* const errors_;
  std::atomic<int>* const ended_;
  std::size_t phase_ = 0;
  std::atomic<bool> advancing_{false};
  std::vector<std::unique_ptr<Chain>> state_;
};

TEST(Scheduler, RunsAJobsQuantaInOrderAndOnce) {
  std::vector<int> seen;
  {
    Scheduler scheduler(4, SystemClock());
    scheduler.Submit("t", 1, std::make_unique<Quanta>(50, [&](int i) {
                       Spin(std::chrono::microseconds(50));
                       seen.push_back(i);
                     }));
    scheduler.Stop();
  }
  ASSERT_EQ(seen.size(), 50U);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
}

TEST(Scheduler, KeepsTheOrderOfChainsAndAdvances) {
  for (const int workers : {1, 2, 4}) {
    for (const int spin : {0, 30, 300}) {
      std::atomic<int> errors{0};
      std::atomic<int> ended{0};
      Scheduler scheduler(workers, SystemClock());
      for (std::uint64_t session = 0; session < 6; ++session) {
        scheduler.Submit(
            "t", session,
            std::make_unique<Phases>(std::vector<int>{1, 7, 3, 1, 20}, 3,
                                     std::chrono::microseconds(spin), &errors, &ended));
      }
      scheduler.Stop();
      EXPECT_EQ(errors, 0);
      EXPECT_EQ(ended, 6);
      EXPECT_EQ(scheduler.jobs(), 0);
    }
  }
}

// Two chains that can only end together.
class Rendezvous final : public Job {
 public:
  explicit Rendezvous(std::atomic<int>* met) : met_(met) {}
  Next Advance(engine::Scratch& /*scratch*/) override {
    return std::exchange(first_, false) ? Next::kChains : Next::kEnd;
  }
  std::int64_t chains() const override { return 3; }
  bool RunChain(std::int64_t chain, engine::Scratch& /*scratch*/) override {
    if (chain == 0) {
      // The first one, which the worker that began the job runs alone.
      Spin(std::chrono::microseconds(2 * Scheduler::kPrivateNanos / 1000));
      return true;
    }
    ++*met_;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (*met_ < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return true;
  }

 private:
  std::atomic<int>* const met_;
  bool first_ = true;
};

TEST(Scheduler, RunsTheChainsOfALongJobOnSeveralWorkers) {
  std::atomic<int> met{0};
  Scheduler scheduler(2, SystemClock());
  const auto start = std::chrono::steady_clock::now();
  scheduler.Submit("t", 1, std::make_unique<Rendezvous>(&met));
  scheduler.Stop();
  EXPECT_EQ(met, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5))
      << "the chains met: neither waited in vain";
}

// One session with 200 jobs was there first; another's single job must not wait for them all.
TEST(Scheduler, AShortJobDoesNotWaitForAnotherSessionsQueue) {
  Scheduler scheduler(1, SystemClock());
  Gate gate;
  std::atomic<int> others{0};
  std::atomic<int> others_before{-1};
  scheduler.Submit("t", 99, std::make_unique<Quanta>(1, [&](int) { gate.Wait(); }));
  for (int i = 0; i < 200; ++i) {
    scheduler.Submit("t", 1, std::make_unique<Quanta>(1, [&](int) {
                       Spin(std::chrono::microseconds(300));
                       ++others;
                     }));
  }
  scheduler.Submit("t", 2,
                   std::make_unique<Quanta>(1, [&](int) { others_before = others.load(); }));
  gate.Open();
  scheduler.Stop();
  EXPECT_EQ(others, 200);
  EXPECT_LE(others_before, 8);
}

// The share of the second of two flows that both always have work, one in long and one in short
// quanta. Time is what the quanta say, so that the machine has no part in it.
double Share(const std::string& tenant_a, std::uint64_t a_sessions, const std::string& tenant_b) {
  FakeClock clock;
  Scheduler scheduler(1, clock);
  Gate gate;
  const std::int64_t end = clock.MonotonicNanos() + 2'000'000'000;
  absl::Duration a;
  absl::Duration b;
  const auto endless = [&clock, end](absl::Duration quantum, absl::Duration* sum) {
    class Endless final : public Job {
     public:
      Endless(FakeClock& clock, std::int64_t end, absl::Duration quantum, absl::Duration* sum)
          : clock_(clock), end_(end), quantum_(quantum), sum_(sum) {}
      Next Advance(engine::Scratch& /*scratch*/) override {
        clock_.Advance(quantum_);
        *sum_ += quantum_;
        return clock_.MonotonicNanos() < end_ ? Next::kAdvance : Next::kEnd;
      }

     private:
      FakeClock& clock_;
      const std::int64_t end_;
      const absl::Duration quantum_;
      absl::Duration* const sum_;
    };
    return std::make_unique<Endless>(clock, end, quantum, sum);
  };
  scheduler.Submit("gate", 99, std::make_unique<Quanta>(1, [&](int) { gate.Wait(); }));
  for (int i = 0; i < 4; ++i) {
    for (std::uint64_t s = 0; s < a_sessions; ++s) {
      scheduler.Submit(tenant_a, s, endless(absl::Microseconds(900), &a));
    }
    scheduler.Submit(tenant_b, 1000, endless(absl::Microseconds(100), &b));
  }
  gate.Open();
  scheduler.Stop();
  return absl::FDivDuration(b, a + b);
}

TEST(Scheduler, SessionsOfATenantShareTimeEvenlyWhateverTheirQuanta) {
  const double share = Share("t", 1, "t");
  EXPECT_GT(share, 0.4);
  EXPECT_LT(share, 0.6);
}

TEST(Scheduler, TenantsShareTimeEvenlyHoweverManySessionsTheyHave) {
  const double share = Share("many", 20, "one");
  EXPECT_GT(share, 0.4);
  EXPECT_LT(share, 0.6);
}

TEST(Scheduler, RunsAShortJobOnTheCallingThreadWhenNothingElseRuns) {
  Scheduler scheduler(2, SystemClock());
  std::thread::id ran;
  std::int64_t jobs = 0;
  scheduler.RunHereIfIdle("t", 1, std::make_unique<Quanta>(3, [&](int) {
                            ran = std::this_thread::get_id();
                            jobs = scheduler.jobs();
                          }));
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_EQ(jobs, 1) << "it counts, so that a second one is queued and Stop() waits for it";
  EXPECT_EQ(scheduler.jobs(), 0);
}

TEST(Scheduler, QueuesAShortJobBehindOthers) {
  Scheduler scheduler(1, SystemClock());
  Gate gate;
  std::vector<int> order;  // of the one worker
  std::thread::id ran;
  scheduler.Submit("t", 1, std::make_unique<Quanta>(1, [&](int) {
                     gate.Wait();
                     order.push_back(1);
                   }));
  scheduler.RunHereIfIdle("t", 2, std::make_unique<Quanta>(1, [&](int) {
                            ran = std::this_thread::get_id();
                            order.push_back(2);
                          }));
  gate.Open();
  scheduler.Stop();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_NE(ran, std::this_thread::get_id());
}

// Its sizes may promise less than a job turns out to take; the calling thread is gRPC's.
TEST(Scheduler, AJobThatTakesLongerThanItSeemedGoesOnOnAWorker) {
  for (const bool if_idle : {false, true}) {
    FakeClock clock;
    Scheduler scheduler(1, clock);
    std::vector<std::thread::id> ran;
    auto job = std::make_unique<Quanta>(10, [&](int) {
      clock.Advance(absl::Nanoseconds(Scheduler::kHereNanos / 4));
      ran.push_back(std::this_thread::get_id());
    });
    if (if_idle) {
      scheduler.RunHereIfIdle("t", 1, std::move(job));
    } else {
      scheduler.RunHere("t", 1, std::move(job));
    }
    scheduler.Stop();
    ASSERT_EQ(ran.size(), 10U);
    EXPECT_EQ(std::ranges::count(ran, std::this_thread::get_id()), 4) << if_idle;
  }
}

// The same in the middle of a phase.
TEST(Scheduler, ChainsThatTakeLongerThanTheySeemedGoOnOnWorkers) {
  std::atomic<int> errors{0};
  std::atomic<int> ended{0};
  Scheduler scheduler(2, SystemClock());
  scheduler.RunHere("t", 1,
                    std::make_unique<Phases>(std::vector<int>{5, 3}, 2,
                                             std::chrono::microseconds(300), &errors, &ended));
  scheduler.Stop();
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(ended, 1);
}

TEST(Scheduler, RunsABriefJobOnTheCallingThreadWhateverElseRuns) {
  Scheduler scheduler(1, SystemClock());
  Gate gate;
  scheduler.Submit("t", 1, std::make_unique<Quanta>(1, [&](int) { gate.Wait(); }));
  std::thread::id ran;
  scheduler.RunHere("t", 1,
                    std::make_unique<Quanta>(1, [&](int) { ran = std::this_thread::get_id(); }));
  EXPECT_EQ(ran, std::this_thread::get_id());
  gate.Open();
  scheduler.Stop();  // before what its jobs refer to is gone
}

TEST(Scheduler, StopWaitsForJobsAndForTheJobsTheySubmit) {
  Scheduler scheduler(3, SystemClock());
  std::atomic<int> ended{0};
  std::function<void(int)> submit = [&](int depth) {
    scheduler.Submit("t", static_cast<std::uint64_t>(depth),
                     std::make_unique<Quanta>(
                         3, [](int) { Spin(std::chrono::microseconds(100)); },
                         [&submit, &ended, depth] {
                           if (depth > 0) submit(depth - 1);
                           ++ended;
                         }));
  };
  submit(50);
  scheduler.Stop();
  EXPECT_EQ(ended, 51);
}

TEST(Scheduler, LosesNoWakeUpUnderStress) {
  std::atomic<int> errors{0};
  std::atomic<int> ended{0};
  Scheduler scheduler(4, SystemClock());
  std::vector<std::thread> submitters;
  constexpr int kThreads = 4;
  for (int t = 0; t < kThreads; ++t) {
    submitters.emplace_back([&, t] {
      std::mt19937 random(static_cast<std::uint32_t>(t));
      for (int i = 0; i < kStressJobs / kThreads; ++i) {
        const std::string tenant(1, static_cast<char>('a' + random() % 3));
        const std::uint64_t session = random() % 5;
        const auto chains = static_cast<int>(1 + random() % 4);
        const auto spin = std::chrono::microseconds(random() % 50 == 0 ? 250 : 0);
        scheduler.Submit(
            tenant, session,
            std::make_unique<Phases>(std::vector<int>{chains, 1},
                                     static_cast<int>(1 + random() % 3), spin, &errors, &ended));
        if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  // Without Stop: a lost wake-up would leave work lying.
  for (int i = 0; i < 3000 && scheduler.jobs() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(scheduler.jobs(), 0);
  EXPECT_EQ(ended, kStressJobs / kThreads * kThreads);
  EXPECT_EQ(errors, 0);
}

}  // namespace
}  // namespace attnd::server

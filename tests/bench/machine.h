// What one core of this machine can do at best, with the pinned instruction set: the measures that
// the benchmarks' rates are fractions of. Each call takes some tens of milliseconds and reports the
// best of several rounds, because other processes only ever make a round slower.
#ifndef ATTND_TESTS_BENCH_MACHINE_H_
#define ATTND_TESTS_BENCH_MACHINE_H_

#include <cstdint>
#include <memory>

namespace attnd::bench {

// Pins the instruction set that ATTND_ISA names (native without it), prepares the calling thread's
// products, and prints the machine. False, after saying why on standard error, where that fails.
bool PrepareMachine();

// The calling thread's processor time: on a busy machine a round is interrupted more often than
// not.
double ThreadSeconds();

// f32 multiply-adds in registers, 2 operations each, in 10^9 operations per second.
double MeasureFmaPeakGflops();

// Reading memory in large pages in the best of a few orders. A neighbour on the same memory changes
// the rate from second to second, so a ratio to it is taken round by round.
class ReadBandwidth {
 public:
  // Several times the last-level cache for the memory's rate.
  explicit ReadBandwidth(std::int64_t bytes);
  ~ReadBandwidth();

  // One round, in 10^9 bytes per second.
  double MeasureGBps();

 private:
  class LargePages;
  std::int64_t floats_;
  std::unique_ptr<LargePages> memory_;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_MACHINE_H_

#include "tests/bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/machine.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
constexpr std::int64_t kLanes = hn::MaxLanes(F32());

// Ten independent chains hide a latency of 4 or 5 cycles at two a cycle. Returns the operations
// done.
double FmaLoop(std::int64_t rounds, float* sink) {
  const F32 d;
  const auto a = hn::Set(d, 0.999F);
  const auto b = hn::Set(d, 0.001F);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0,
       s9 = s0;
  for (std::int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(s4, s5), hn::Add(hn::Add(s6, s7), hn::Add(s8, s9))));
  hn::StoreU(sum, d, sink);
  return 10.0 * 2.0 * static_cast<double>(kLanes) * static_cast<double>(rounds);
}

// Reads n floats, n a multiple of 1024, in order; `ahead` floats are asked for in advance (0: left
// to the hardware).
void ReadLoop(const float* x, std::int64_t n, std::int64_t ahead, float* sink) {
  const F32 d;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (std::int64_t i = 0; i < n; i += 4 * kLanes) {
    if (ahead > 0) {
      for (std::int64_t line = 0; line < 4 * kLanes; line += 16)
        __builtin_prefetch(x + i + ahead + line, 0, 2);
    }
    s0 = hn::Add(s0, hn::LoadU(d, x + i));
    s1 = hn::Add(s1, hn::LoadU(d, x + i + kLanes));
    s2 = hn::Add(s2, hn::LoadU(d, x + i + 2 * kLanes));
    s3 = hn::Add(s3, hn::LoadU(d, x + i + 3 * kLanes));
  }
  hn::StoreU(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), d, sink);
}

}  // namespace attnd::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::bench {
HWY_EXPORT(FmaLoop);
HWY_EXPORT(ReadLoop);

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double MeasureFmaPeakGflops() {
  constexpr std::int64_t kRounds = 400'000;
  float sink[16];
  double best = 0.0;
  for (int round = 0; round < 20; ++round) {
    const Clock::time_point start = Clock::now();
    const double operations = HWY_DYNAMIC_DISPATCH(FmaLoop)(kRounds, sink);
    best = std::max(best, operations / SecondsSince(start) * 1e-9);
  }
  return best;
}

double MeasureReadBandwidthGBps(std::int64_t bytes) {
  constexpr std::int64_t kChunk = 1024;
  constexpr std::int64_t kAhead = 4096;  // 16 KiB, read past the end by prefetching only
  const std::int64_t n =
      std::max<std::int64_t>(bytes / static_cast<std::int64_t>(sizeof(float)) / kChunk, 1) * kChunk;
  const std::vector<float> x(static_cast<std::size_t>(n), 1.0F);
  float sink[16];
  double best = 0.0;
  for (int round = 0; round < 10; ++round) {
    for (const std::int64_t ahead : {std::int64_t{0}, kAhead}) {
      const Clock::time_point start = Clock::now();
      HWY_DYNAMIC_DISPATCH(ReadLoop)(x.data(), n, ahead, sink);
      best = std::max(best, static_cast<double>(n) * sizeof(float) / SecondsSince(start) * 1e-9);
    }
  }
  return best;
}

}  // namespace attnd::bench
#endif

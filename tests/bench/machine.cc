#include "tests/bench/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/cpu.h"
#include "engine/gemm.h"
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

// Ten chains hide a latency of 4 or 5 cycles at two a cycle. They differ from the start and from
// the map's fixed point 1: GCC merges chains that it can prove equal (the loop then claims 148 GF/s
// instead of 118), clang drops one that stays at 1. Returns the operations done.
double FmaLoop(std::int64_t rounds, float* sink) {
  const F32 d;
  constexpr std::size_t kChains = 10;
  const auto a = hn::Set(d, 0.999F);
  const auto b = hn::Set(d, 0.001F);
  hn::Vec<F32> chain[kChains];
  for (std::size_t c = 0; c < kChains; ++c) chain[c] = hn::Set(d, static_cast<float>(c + 2));
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (auto& value : chain) value = hn::MulAdd(value, a, b);
  }
  for (std::size_t c = 1; c < kChains; ++c) chain[0] = hn::Add(chain[0], chain[c]);
  hn::StoreU(chain[0], d, sink);
  return static_cast<double>(kChains) * 2.0 * static_cast<double>(kLanes) *
         static_cast<double>(rounds);
}

// Reads n floats as `streams` equal parts side by side, each in order; n / streams is a multiple
// of 64.
void ReadLoop(const float* x, std::int64_t n, std::int64_t streams, float* sink) {
  const F32 d;
  const std::int64_t part = n / streams;
  auto s0 = hn::Zero(d);
  auto s1 = s0;
  auto s2 = s0;
  auto s3 = s0;
  for (std::int64_t i = 0; i < part; i += 4 * kLanes) {
    for (std::int64_t stream = 0; stream < streams; ++stream) {
      const float* from = x + stream * part + i;
      s0 = hn::Add(s0, hn::LoadU(d, from));
      s1 = hn::Add(s1, hn::LoadU(d, from + kLanes));
      s2 = hn::Add(s2, hn::LoadU(d, from + 2 * kLanes));
      s3 = hn::Add(s3, hn::LoadU(d, from + 3 * kLanes));
    }
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

// The CPU's name as the kernel gives it.
std::string CpuName() {
  const std::string field = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

}  // namespace

bool PrepareMachine() {
  const char* isa = std::getenv("ATTND_ISA");
  absl::Status status = engine::PinIsa(isa == nullptr ? "native" : isa);
  status.Update(engine::GemmInitThread());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return false;
  }
  std::printf("machine %s, %u CPUs, instruction set %s\n", CpuName().c_str(),
              std::thread::hardware_concurrency(), engine::ActiveIsa().c_str());
  return true;
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double MeasureFmaPeakGflops() {
  constexpr std::int64_t kRounds = 400'000;
  float sink[16];
  double best = 0.0;
  for (int round = 0; round < 20; ++round) {
    const double start = ThreadSeconds();
    const double operations = HWY_DYNAMIC_DISPATCH(FmaLoop)(kRounds, sink);
    best = std::max(best, operations / (ThreadSeconds() - start) * 1e-9);
  }
  return best;
}

// Memory in pages of 2 MiB where the kernel has them.
class ReadBandwidth::LargePages {
 public:
  explicit LargePages(std::size_t bytes) {
    constexpr std::size_t kPage = std::size_t{2} << 20U;
    const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
    data_.reset(static_cast<float*>(std::aligned_alloc(kPage, size)));
    if (data_ == nullptr) throw std::bad_alloc();
    // Advice: without large pages the measure is lower, not wrong.
    static_cast<void>(madvise(data_.get(), size, MADV_HUGEPAGE));
  }

  float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
};

ReadBandwidth::ReadBandwidth(std::int64_t bytes) {
  constexpr std::int64_t kChunk = 512;  // 64 floats for each of 8 streams
  floats_ =
      std::max<std::int64_t>(bytes / static_cast<std::int64_t>(sizeof(float)) / kChunk, 1) * kChunk;
  memory_ = std::make_unique<LargePages>(static_cast<std::size_t>(floats_) * sizeof(float));
  std::fill_n(memory_->data(), floats_, 1.0F);
}

ReadBandwidth::~ReadBandwidth() = default;

double ReadBandwidth::MeasureGBps() {
  // With small pages 8 streams give half as much again as 1 and with large ones a little less; page
  // walks make the difference.
  constexpr std::int64_t kStreams[] = {1, 2, 8};
  float sink[16];
  double best = 0.0;
  for (const std::int64_t streams : kStreams) {
    const double start = ThreadSeconds();
    HWY_DYNAMIC_DISPATCH(ReadLoop)(memory_->data(), floats_, streams, sink);
    const double seconds = ThreadSeconds() - start;
    best = std::max(best, static_cast<double>(floats_) * sizeof(float) / seconds * 1e-9);
  }
  return best;
}

}  // namespace attnd::bench
#endif

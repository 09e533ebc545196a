// What a sliding window costs: memory, appends and queries of layers whose window is full.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "engine/engine_config.h"
#include "engine/layer_stream.h"
#include "tests/bench/bars.h"

namespace attnd::bench {
namespace {

constexpr std::int64_t kDim = 64;
constexpr std::int64_t kContext = std::int64_t{1} << 17;
constexpr std::int64_t kPiece = 4096;
constexpr std::int64_t kSingles = 512;
constexpr double kAppendTarget = 3;
constexpr double kAttendTarget = 1.1;

std::vector<float> Numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

struct Times {
  double append_piece = 0;   // us a token, in pieces of kPiece
  double append_single = 0;  // us a token, one at a time
  double attend = 0;         // us, one query
};

class Layer {
 public:
  explicit Layer(const engine::EngineConfig& config) : engine_(*engine::MakeEngine(config)) {
    while (state_->position() < kContext) Append(kPiece);
  }

  void Append(std::int64_t count) {
    engine::LayerDraft draft(*engine_, state_);
    const engine::TokenBatch batch = {kPiece,
                                      {engine::DataType::kF32, keys_.data(), kPiece * kDim},
                                      {engine::DataType::kF32, values_.data(), kPiece * kDim},
                                      nullptr};
    if (!draft.Append(batch, 0, count, nullptr, scratch_).ok()) std::abort();
    if (!draft.CheckTail(scratch_).ok()) std::abort();
    state_ = draft.Finish();
  }

  void Attend() {
    plan_->Reset(engine::AttendGroup(*state_, queries_.data(), 1), {.outputs = outputs_.data()});
    for (std::int64_t chain = 0; chain < plan_->chains(); ++chain) {
      while (!plan_->Run(chain, scratch_)) {
      }
    }
    plan_->Finish(scratch_);
  }

  Times Measure(const BenchOptions& options) {
    Times times;
    times.append_piece = MedianSeconds(options, [&] { Append(kPiece); }) * 1e6 / kPiece;
    times.append_single = MedianSeconds(options,
                                        [&] {
                                          for (std::int64_t i = 0; i < kSingles; ++i) Append(1);
                                        }) *
                          1e6 / kSingles;
    constexpr int kAttends = 20;
    times.attend = MedianSeconds(options,
                                 [&] {
                                   for (int i = 0; i < kAttends; ++i) Attend();
                                 }) *
                   1e6 / kAttends;
    return times;
  }

  std::int64_t bytes() const { return state_->bytes(); }

 private:
  const std::unique_ptr<const engine::Engine> engine_;
  const std::vector<float> keys_ = Numbers(kPiece * kDim, 1);
  const std::vector<float> values_ = Numbers(kPiece * kDim, 2);
  const std::vector<float> queries_ = Numbers(kDim, 3);
  std::vector<float> outputs_ = std::vector<float>(kDim);
  engine::Scratch scratch_;
  std::shared_ptr<const engine::LayerState> state_ = engine::EmptyLayer(*engine_);
  const std::unique_ptr<engine::AttendPlan> plan_ = engine_->NewPlan();
};

}  // namespace

std::vector<Bar> WindowBars(const BenchOptions& options) {
  std::vector<Bar> bars;
  for (const bool linear : {true, false}) {
    Times plain;
    for (const std::int64_t window : {0, 4096, 65536}) {
      engine::EngineConfig config;
      config.shape = {1, 1, kDim, kDim, 0.125F};
      if (linear) config.kind = engine::LinearConfig{};
      config.window_tokens = window;
      Layer layer(config);
      const Times times = layer.Measure(options);
      std::printf(
          "%s, window %lld, %lld tokens before: %.2f MB; append %.3f us a token in pieces of "
          "%lld, %.2f one at a time; one query %.2f us\n",
          linear ? "linear" : "exact", static_cast<long long>(window),
          static_cast<long long>(kContext), static_cast<double>(layer.bytes()) / 1e6,
          times.append_piece, static_cast<long long>(kPiece), times.append_single, times.attend);
      if (window == 0) plain = times;
      if (linear && window == 65536) {
        bars.push_back(
            {"window_linear_append", times.append_piece / plain.append_piece, kAppendTarget, true});
        bars.push_back({"window_linear_attend", times.attend / plain.attend, kAttendTarget, true});
      }
    }
  }
  return bars;
}

}  // namespace attnd::bench

#include "engine/kde/certified/heavy_keys.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>

#include "engine/block.h"
#include "engine/simd/code_scan.h"

namespace attnd::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Candidates are cut back to `most` when there are this many times as many: with fewer the cutting
// is what costs, with more the memory.
constexpr std::int64_t kCandidatesPerKey = 2;
constexpr int kBins = 256;

}  // namespace

void HeavyKeys::Reset(std::int64_t k, float margin, std::int64_t most) {
  k_ = k;
  margin_ = margin;
  most_ = most;
  threshold_ = most > 0 ? -kInfinity : kInfinity;
  candidates_.clear();
  const auto room = static_cast<std::size_t>(kCandidatesPerKey * most + kBlockTokens);
  candidates_.reserve(room);
  scores_.reserve(room);
}

void HeavyKeys::Offer(std::int64_t block, const float* scores) {
  std::uint64_t above = ScoresAbove(scores, threshold_);
  for (; above != 0; above &= above - 1) {
    const int j = std::countr_zero(above);
    candidates_.push_back({block * kBlockTokens + j, scores[j]});
  }
  if (static_cast<std::int64_t>(candidates_.size()) >= kCandidatesPerKey * most_) {
    // A key that comes later needs more than the least score that is kept: of equal ones the
    // earlier goes first.
    if (most_ > 0) threshold_ = KeepLargest(most_);
  }
}

// Keeps the order of the keys, so that nobody has to sort them. The least score kept is looked for
// among the candidates of one bin of a histogram: selecting among all of them costs three times as
// much, which was more than the scan.
float HeavyKeys::KeepLargest(std::int64_t count) {
  float low = kInfinity;
  float high = -kInfinity;
  for (const HeavyKey& candidate : candidates_) {
    low = std::min(low, candidate.score);
    high = std::max(high, candidate.score);
  }
  const float scale = high > low ? kBins / (high - low) : 0.0F;
  const auto bin = [&](float score) {  // falls with the score
    const float place = (high - score) * scale;
    return place < kBins - 1 ? static_cast<std::size_t>(place) : std::size_t{kBins - 1};
  };
  std::array<std::int64_t, kBins> counts = {};
  for (const HeavyKey& candidate : candidates_) ++counts[bin(candidate.score)];
  std::size_t last_bin = 0;
  std::int64_t before = 0;
  while (before + counts[last_bin] < count) before += counts[last_bin++];
  scores_.clear();
  for (const HeavyKey& candidate : candidates_) {
    if (bin(candidate.score) == last_bin) scores_.push_back(candidate.score);
  }
  const auto last = scores_.begin() + (count - before - 1);
  std::nth_element(scores_.begin(), last, scores_.end(), std::greater<>());
  const float least = *last;
  // Before `last` are all that are larger, and as many of the equal ones as there is room for.
  std::int64_t equal = std::count(scores_.begin(), last + 1, least);
  std::size_t kept = 0;
  for (const HeavyKey& candidate : candidates_) {
    candidates_[kept] = candidate;
    if (candidate.score > least) {
      ++kept;
    } else if (candidate.score == least && equal > 0) {
      --equal;
      ++kept;
    }
  }
  candidates_.resize(kept);
  return least;
}

std::span<const HeavyKey> HeavyKeys::Choose() {
  const auto offered = static_cast<std::int64_t>(candidates_.size());
  float best = -kInfinity;
  for (const HeavyKey& candidate : candidates_) best = std::max(best, candidate.score);
  const std::int64_t within =
      std::count_if(candidates_.begin(), candidates_.end(),
                    [&](const HeavyKey& candidate) { return candidate.score >= best - margin_; });
  const std::int64_t count = std::min(std::max(k_, within), most_);
  if (count == 0) return {};
  if (count < offered) KeepLargest(count);
  return candidates_;
}

}  // namespace attnd::engine

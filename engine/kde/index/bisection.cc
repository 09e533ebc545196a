#include "engine/kde/index/bisection.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/simd/nearest.h"

namespace attnd::engine {
namespace {

// A quarter of a piece tells where it is cut, within these: the first cuts matter most, and most
// pieces are small.
constexpr std::int64_t kLeastSample = 64;
constexpr std::int64_t kMostSample = 512;
constexpr int kIterations = 3;

// How many rows before it is read a row is asked for.
constexpr std::int64_t kAhead = 4;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The number of keys before the cut of a piece of `count` > 64 keys, of which `natural` lie before
// the middle plane.
std::int64_t CutAt(std::int64_t natural, std::int64_t count) {
  const std::int64_t leaves = (count + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t least = std::max(leaves / 4, std::int64_t{1});
  const std::int64_t most = std::max((3 * leaves + 3) / 4, least);
  const std::int64_t nearest = (natural + kBlockTokens / 2) / kBlockTokens;
  return std::min(std::clamp(nearest, least, most), leaves - 1) * kBlockTokens;
}

}  // namespace

Bisection::Bisection(const KeyMatrix& keys, std::vector<std::int32_t>& order)
    : keys_(keys),
      order_(order),
      steps_(std::max((keys.count + kBlockTokens - 1) / kBlockTokens - 1, std::int64_t{0})),
      low_(Index(keys.dim)),
      high_(Index(keys.dim)),
      direction_(Index(keys.dim)) {
  if (steps_ > 0) open_.push_back({0, keys.count});
}

// 2-means of an evenly spaced sample, begun with the key farthest from the sample's mean and the
// key farthest from that one. Leaves the centres' difference in direction_.
void Bisection::FindCentres(const Range& range) {
  const std::int64_t count = range.end - range.first;
  const std::int64_t sampled = std::clamp(count / 4, kLeastSample, kMostSample);
  const auto key = [&](std::int64_t i) {
    return keys_.row(order_[Index(range.first + i * count / sampled)]);
  };
  const auto farthest = [&](const std::vector<float>& from) {
    const float* best = key(0);
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < sampled; ++i) {
      // Squared distance without the part that all keys share.
      const float distance =
          Dot(key(i), key(i), keys_.dim) - 2.0F * Dot(key(i), from.data(), keys_.dim);
      if (distance > largest) {
        largest = distance;
        best = key(i);
      }
    }
    return best;
  };
  std::vector<double> low_sum(Index(keys_.dim));
  std::vector<double> high_sum(Index(keys_.dim));
  for (std::int64_t i = 0; i < sampled; ++i) {
    for (std::int64_t c = 0; c < keys_.dim; ++c) low_sum[Index(c)] += key(i)[c];
  }
  for (std::int64_t c = 0; c < keys_.dim; ++c) {
    low_[Index(c)] = static_cast<float>(low_sum[Index(c)] / static_cast<double>(sampled));
  }
  std::copy_n(farthest(low_), keys_.dim, low_.begin());
  std::copy_n(farthest(low_), keys_.dim, high_.begin());
  for (int iteration = 0;; ++iteration) {
    float middle = 0.0F;
    for (std::size_t c = 0; c < direction_.size(); ++c) {
      direction_[c] = high_[c] - low_[c];
      middle += direction_[c] * 0.5F * (high_[c] + low_[c]);
    }
    if (iteration == kIterations) return;
    std::fill(low_sum.begin(), low_sum.end(), 0.0);
    std::fill(high_sum.begin(), high_sum.end(), 0.0);
    std::int64_t high_count = 0;
    for (std::int64_t i = 0; i < sampled; ++i) {
      const bool high = Dot(key(i), direction_.data(), keys_.dim) > middle;
      high_count += high ? 1 : 0;
      std::vector<double>& sum = high ? high_sum : low_sum;
      for (std::int64_t c = 0; c < keys_.dim; ++c) sum[Index(c)] += key(i)[c];
    }
    if (high_count == 0 || high_count == sampled) return;
    for (std::size_t c = 0; c < direction_.size(); ++c) {
      low_[c] = static_cast<float>(low_sum[c] / static_cast<double>(sampled - high_count));
      high_[c] = static_cast<float>(high_sum[c] / static_cast<double>(high_count));
    }
  }
}

void Bisection::Cut(const Range& range) {
  const std::int64_t count = range.end - range.first;
  float middle = 0.0F;
  for (std::size_t c = 0; c < direction_.size(); ++c) {
    middle += direction_[c] * 0.5F * (high_[c] + low_[c]);
  }
  projections_.resize(Index(count));
  std::int64_t natural = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t key = order_[Index(range.first + i)];
    const std::int64_t ahead = std::min(range.first + i + kAhead, range.end - 1);
    PrefetchRow(keys_.row(order_[Index(ahead)]), keys_.dim);
    const float projection = Dot(keys_.row(key), direction_.data(), keys_.dim);
    projections_[Index(i)] = {projection, key};
    natural += projection <= middle ? 1 : 0;
  }
  const std::int64_t cut = CutAt(natural, count);
  // No two are equal, so that both sides are well defined.
  std::nth_element(projections_.begin(), projections_.begin() + cut, projections_.end());
  for (std::int64_t i = 0; i < count; ++i) {
    order_[Index(range.first + i)] = projections_[Index(i)].second;
  }
  for (const Range part :
       {Range{range.first, range.first + cut}, Range{range.first + cut, range.end}}) {
    if (part.end - part.first > kBlockTokens) open_.push_back(part);
  }
}

bool Bisection::Step() {
  if (open_.empty()) return true;
  const Range range = open_.back();
  open_.pop_back();
  FindCentres(range);
  Cut(range);
  return open_.empty();
}

}  // namespace attnd::engine

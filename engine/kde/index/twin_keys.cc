#include "engine/kde/index/twin_keys.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/kde/index/leaf_assignment.h"
#include "engine/kde/index/leaf_means.h"
#include "engine/simd/nearest.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// One key in so many looks for a twin.
constexpr std::int64_t kKeysPerSearch = 32;
// In its own leaf and so many others.
constexpr int kLeavesPerSearch = 2;
// A twin is nearer than the mean by this factor, of squares.
constexpr float kTwinShare = 0.5F;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

TwinKeys::TwinKeys(const KeyMatrix& keys, std::span<std::int32_t> order)
    : keys_(keys), order_(order), towards_(Index(keys.dim)), settled_(order.size()) {
  const std::int64_t count = std::ssize(order);
  columns_ = RoundUp((count + kBlockTokens - 1) / kBlockTokens, kGemmColumnMultiple);
  means_t_.resize(Index(keys.dim * columns_));
  offsets_.resize(Index(columns_));
  MeanColumns(keys, order, columns_, means_t_.data(), offsets_.data());
  // Keys of isolated leaves are always read; none is to leave for a twin's sake.
  for (std::int64_t leaf = 0; leaf * kBlockTokens < count; ++leaf) {
    if (IsIsolated(leaf * kBlockTokens)) {
      offsets_[Index(leaf)] = -std::numeric_limits<float>::infinity();
    }
  }
  DistancesFromMeans(keys, order, far_);
  std::erase_if(far_, [&](const auto& key) { return IsIsolated(key.second); });
  const auto tried = far_.begin() + std::min(count / kKeysPerSearch, std::ssize(far_));
  std::nth_element(far_.begin(), tried, far_.end(), std::greater<>());
  std::sort(far_.begin(), tried, std::greater<>());
  far_.erase(tried, far_.end());
  for (auto& key : far_) key.second = order_[Index(key.second)];
  places_.resize(Index(keys.count));
  for (std::int64_t place = 0; place < count; ++place) {
    places_[Index(order_[Index(place)])] = static_cast<std::int32_t>(place);
  }
}

std::int64_t TwinKeys::Steps(std::int64_t keys) {
  return std::max((keys / kKeysPerSearch + kGemmMaxRows - 1) / kGemmMaxRows, std::int64_t{1});
}

bool TwinKeys::IsIsolated(std::int64_t place) const {
  const std::int64_t group = place / kGroupKeys * kGroupKeys;
  const std::int64_t count = std::min(kGroupKeys, std::ssize(order_) - group);
  return (place - group) / kBlockTokens >= FirstIsolatedLeaf(count);
}

TwinKeys::Twin TwinKeys::Find(std::int64_t place, float square, const float* scores) {
  const float* key = keys_.row(order_[Index(place)]);
  Twin twin = {.square = kTwinShare * square};
  const auto look = [&](std::int64_t leaf) {
    const std::int64_t end = std::min((leaf + 1) * kBlockTokens, std::ssize(order_));
    for (std::int64_t other = leaf * kBlockTokens; other < end; ++other) {
      if (other == place) continue;
      const float distance = SquaredDistance(key, keys_.row(order_[Index(other)]), keys_.dim);
      if (distance < twin.square) twin = {other, distance};
    }
  };
  open_ = offsets_;
  const std::int64_t own = place / kBlockTokens;
  look(own);
  open_[Index(own)] = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < kLeavesPerSearch; ++i) {
    const std::int64_t leaf = IndexOfLargest(scores, open_.data(), columns_);
    if (!(open_[Index(leaf)] > -std::numeric_limits<float>::infinity())) break;
    look(leaf);
    open_[Index(leaf)] = -std::numeric_limits<float>::infinity();
  }
  return twin;
}

std::int64_t TwinKeys::GivesWay(std::int64_t leaf, std::int64_t to) {
  for (std::int64_t c = 0; c < keys_.dim; ++c) {
    const float* means = means_t_.data() + c * columns_;
    towards_[Index(c)] = means[to] - means[leaf];
  }
  std::int64_t chosen = -1;
  float most = -std::numeric_limits<float>::infinity();
  const std::int64_t end = std::min((leaf + 1) * kBlockTokens, std::ssize(order_));
  for (std::int64_t place = leaf * kBlockTokens; place < end; ++place) {
    if (settled_[Index(place)]) continue;
    const float gain = Dot(keys_.row(order_[Index(place)]), towards_.data(), keys_.dim);
    if (gain <= most) continue;
    most = gain;
    chosen = place;
  }
  return chosen;
}

bool TwinKeys::Step(Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t count = std::min(kGemmMaxRows, std::ssize(far_) - next_);
  std::vector<std::int32_t> rows;
  for (std::int64_t i = 0; i < count; ++i) rows.push_back(far_[Index(next_ + i)].second);
  float* scores = scratch.Take(kGemmMaxRows * columns_);
  ScoreKeys(keys_, rows, columns_, means_t_.data(), scores, scratch);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& [square, key] = far_[Index(next_ + i)];
    const std::int32_t place = places_[Index(key)];
    if (settled_[Index(place)]) continue;  // with its twin
    const Twin twin = Find(place, square, scores + i * columns_);
    if (twin.place < 0) continue;
    settled_[Index(twin.place)] = true;
    std::int64_t to = place;
    if (twin.place / kBlockTokens != place / kBlockTokens) {
      to = GivesWay(twin.place / kBlockTokens, place / kBlockTokens);
      if (to < 0) continue;
      std::swap(order_[Index(place)], order_[Index(to)]);
      places_[Index(order_[Index(place)])] = place;
      places_[Index(key)] = static_cast<std::int32_t>(to);
    }
    settled_[Index(to)] = true;
  }
  next_ += count;
  return next_ >= std::ssize(far_);
}

}  // namespace attnd::engine

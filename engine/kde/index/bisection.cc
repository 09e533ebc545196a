#include "engine/kde/index/bisection.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "engine/kde/index/ranked_rows.h"
#include "engine/simd/nearest.h"
#include "engine/simd/row_lists.h"

namespace attnd::engine {
namespace {

// A quarter of a piece tells where it is cut, within these: the first cuts matter most, and most
// pieces are small.
constexpr std::int64_t kLeastSample = 64;
constexpr std::int64_t kMostSample = 512;
constexpr int kIterations = 3;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The number of keys before the cut of `count` > `size` keys, of which `natural` lie before the
// middle plane.
std::int64_t CutAt(std::int64_t natural, std::int64_t count, std::int64_t size) {
  const std::int64_t pieces = (count + size - 1) / size;
  const std::int64_t least = std::max(pieces / 4, std::int64_t{1});
  const std::int64_t most = std::max((3 * pieces + 3) / 4, least);
  const std::int64_t nearest = (natural + size / 2) / size;
  return std::min(std::clamp(nearest, least, most), pieces - 1) * size;
}

}  // namespace

Bisection::Bisection(const KeyMatrix& keys, std::span<std::int32_t> order, std::int64_t size)
    : keys_(keys),
      order_(order),
      size_(size),
      steps_(std::max((std::ssize(order) + size - 1) / size - 1, std::int64_t{0})),
      low_(Index(keys.dim)),
      high_(Index(keys.dim)),
      direction_(Index(keys.dim)) {
  if (steps_ > 0) open_.push_back({0, std::ssize(order)});
}

// 2-means of an evenly spaced sample, begun with the key farthest from the sample's mean and the
// key farthest from that one. Leaves the centres' difference in direction_.
void Bisection::FindCentres(const Range& range) {
  const std::int64_t count = range.end - range.first;
  const std::int64_t sampled = std::clamp(count / 4, kLeastSample, kMostSample);
  for (auto* const keys : {&sample_, &low_keys_, &high_keys_}) keys->resize(Index(sampled));
  for (std::int64_t i = 0; i < sampled; ++i) {
    sample_[Index(i)] = order_[Index(range.first + i * count / sampled)];
  }
  const RowList sample = {keys_.rows, keys_.dim, sample_.data(), sampled};
  std::vector<double> sums(Index(keys_.dim));
  const auto mean = [&](const RowList& of, std::vector<float>& to) {
    SumRows(of, sums.data());
    for (std::size_t c = 0; c < to.size(); ++c) {
      to[c] = static_cast<float>(sums[c] / static_cast<double>(of.count));
    }
  };
  dots_.resize(sample_.size());
  const auto farthest = [&](const std::vector<float>& from) {
    SquareOffsets(sample, from.data(), dots_.data());
    return sample.row(std::max_element(dots_.begin(), dots_.end()) - dots_.begin());
  };
  mean(sample, low_);
  std::copy_n(farthest(low_), keys_.dim, low_.begin());
  std::copy_n(farthest(low_), keys_.dim, high_.begin());
  for (int iteration = 0;; ++iteration) {
    for (std::size_t c = 0; c < direction_.size(); ++c) direction_[c] = high_[c] - low_[c];
    middle_ = 0.5F * (Dot(direction_.data(), high_.data(), keys_.dim) +
                      Dot(direction_.data(), low_.data(), keys_.dim));
    if (iteration == kIterations) return;
    DotRows(sample, direction_.data(), dots_.data());
    // Without a branch, which would be guessed wrong half of the time.
    std::int64_t low_count = 0;
    for (std::int64_t i = 0; i < sampled; ++i) {
      low_keys_[Index(low_count)] = high_keys_[Index(i - low_count)] = sample_[Index(i)];
      low_count += dots_[Index(i)] > middle_ ? 0 : 1;
    }
    if (low_count == 0 || low_count == sampled) return;
    mean({keys_.rows, keys_.dim, low_keys_.data(), low_count}, low_);
    mean({keys_.rows, keys_.dim, high_keys_.data(), sampled - low_count}, high_);
  }
}

void Bisection::Cut(const Range& range) {
  const std::int64_t count = range.end - range.first;
  std::int32_t* order = order_.data() + range.first;
  dots_.resize(Index(count));
  projections_.resize(Index(count));
  DotRows({keys_.rows, keys_.dim, order, count}, direction_.data(), dots_.data());
  std::int64_t natural = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    projections_[Index(i)] = RankedRow(dots_[Index(i)], order[i]);
    natural += dots_[Index(i)] <= middle_ ? 1 : 0;
  }
  const std::int64_t cut = CutAt(natural, count, size_);
  // No two are equal, so that both sides are the same sets everywhere.
  std::nth_element(projections_.begin(), projections_.begin() + cut, projections_.end());
  for (std::int64_t i = 0; i < count; ++i) order[i] = RowOf(projections_[Index(i)]);
  for (const Range part :
       {Range{range.first, range.first + cut}, Range{range.first + cut, range.end}}) {
    if (part.end - part.first > size_) open_.push_back(part);
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

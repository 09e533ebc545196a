#include "engine/kde/index/first_leaves.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "engine/block.h"
#include "engine/kde/index/branch_summary.h"

namespace attnd::engine {
namespace {

std::int64_t StepsOf(std::int64_t count, std::int64_t size) {
  return std::max((count + size - 1) / size - 1, std::int64_t{1});
}

}  // namespace

FirstLeaves::FirstLeaves(const KeyMatrix& keys, std::int64_t kept, std::vector<std::int32_t>& order)
    : keys_(keys), kept_(kept), order_(order) {
  const std::span<std::int32_t> loose =
      std::span(order).subspan(static_cast<std::size_t>(kept * kBlockTokens));
  of_keys_.emplace(keys, loose, kBlockTokens);
  steps_ = StepsOf(std::ssize(loose), kBlockTokens);
  // What one bisection cut is in order.
  if (kept > 0) steps_ += StepsOf(keys.count / kBlockTokens, kBranchLeaves);
}

void FirstLeaves::BeginOrdering() {
  const std::int64_t full = keys_.count / kBlockTokens;
  means_.resize(static_cast<std::size_t>(full * keys_.dim));
  leaves_.resize(static_cast<std::size_t>(full));
  std::iota(leaves_.begin(), leaves_.end(), 0);
  for (std::int64_t leaf = 0; leaf < full; ++leaf) {
    float* mean = means_.data() + leaf * keys_.dim;
    for (std::int64_t i = leaf * kBlockTokens; i < (leaf + 1) * kBlockTokens; ++i) {
      const float* key = keys_.row(order_[static_cast<std::size_t>(i)]);
      for (std::int64_t c = 0; c < keys_.dim; ++c) {
        mean[c] += key[c] * (1.0F / static_cast<float>(kBlockTokens));
      }
    }
  }
  of_means_.emplace(KeyMatrix{means_.data(), full, keys_.dim}, leaves_, kBranchLeaves);
}

void FirstLeaves::OrderLeaves() {
  std::vector<std::int32_t> ordered;
  ordered.reserve(order_.size());
  for (const std::int32_t leaf : leaves_) {
    const auto first = order_.begin() + leaf * kBlockTokens;
    ordered.insert(ordered.end(), first, first + kBlockTokens);
  }
  const auto rest = static_cast<std::ptrdiff_t>(ordered.size());
  ordered.insert(ordered.end(), order_.begin() + rest, order_.end());
  order_ = std::move(ordered);
}

bool FirstLeaves::Step() {
  if (of_keys_) {
    if (!of_keys_->Step()) return false;
    of_keys_.reset();
    return kept_ == 0;
  }
  if (!of_means_) BeginOrdering();
  if (!of_means_->Step()) return false;
  OrderLeaves();
  return true;
}

}  // namespace attnd::engine

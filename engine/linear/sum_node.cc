#include "engine/linear/sum_node.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/linear/row_exponents.h"
#include "engine/simd/totals.h"

namespace attnd::engine {
namespace {

double Factor(std::int32_t exponent, std::int32_t largest) {
  return largest == kNoExponent ? 1.0 : ExponentFactorF64(exponent, largest);
}

}  // namespace

SumNode::SumNode(const LinearDims& dims, std::int64_t kv_heads, std::int64_t node_level)
    : level(node_level),
      exponents(static_cast<std::size_t>(kv_heads), kNoExponent),
      shares(static_cast<std::size_t>(kv_heads), 0) {
  if (level == 0) {
    block = AlignedBuffer<float>::Uninitialized(kv_heads * dims.totals());
  } else {
    totals = AlignedBuffer<double>::Uninitialized(kv_heads * dims.totals());
  }
}

SumNodePtr JoinNodes(const LinearDims& dims, const SumNodePtr& left, const SumNodePtr& right) {
  const auto kv_heads = static_cast<std::int64_t>(left->shares.size());
  auto node = std::make_shared<SumNode>(dims, kv_heads, left->level + 1);
  for (std::size_t h = 0; h < left->shares.size(); ++h) {
    const std::int32_t exponent = std::max(left->exponents[h], right->exponents[h]);
    const double left_factor = Factor(left->exponents[h], exponent);
    const double right_factor = Factor(right->exponents[h], exponent);
    const std::int64_t at = static_cast<std::int64_t>(h) * dims.totals();
    double* totals = node->totals.data() + at;
    if (left->level == 0) {
      SumTotals(left->block.data() + at, left_factor, right->block.data() + at, right_factor,
                totals, dims.totals());
    } else {
      SumTotals(left->totals.data() + at, left_factor, right->totals.data() + at, right_factor,
                totals, dims.totals());
    }
    node->exponents[h] = exponent;
    node->shares[h] = left->shares[h] + right->shares[h];
  }
  node->unmasked = left->unmasked + right->unmasked;
  node->rest = std::make_shared<SumList>(SumList{right, left->rest});
  return node;
}

void AddNode(const LinearDims& dims, const SumNode& node, std::int64_t head, std::int32_t exponent,
             double* totals) {
  const double factor = Factor(node.exponents[static_cast<std::size_t>(head)], exponent);
  const std::int64_t at = head * dims.totals();
  if (node.level == 0) {
    AddToTotals(node.block.data() + at, factor, totals, dims.totals());
  } else {
    AddToTotals(node.totals.data() + at, factor, totals, dims.totals());
  }
}

std::int64_t NodeBytes(const LinearDims& dims, std::int64_t kv_heads, std::int64_t level) {
  const std::size_t number = level == 0 ? sizeof(float) : sizeof(double);
  constexpr std::size_t kPerHead = sizeof(std::int32_t) + sizeof(std::int64_t);
  // Shared pointers allocate two counters beside their object.
  constexpr std::size_t kCounters = 16;
  return static_cast<std::int64_t>(sizeof(SumNode) + sizeof(SumList) + 2 * kCounters) +
         kv_heads * (dims.totals() * static_cast<std::int64_t>(number) +
                     static_cast<std::int64_t>(kPerHead));
}

std::int64_t KeptBytes(const LinearDims& dims, std::int64_t kv_heads, std::int64_t level) {
  const std::int64_t block = NodeBytes(dims, kv_heads, 0);
  if (level == 0) return block;
  const std::int64_t pairs = std::int64_t{1} << (level - 1);
  return pairs * (block + NodeBytes(dims, kv_heads, 1));
}

std::int64_t ShareOf(double magnitude) {
  // NaN compares false.
  if (!(magnitude <= static_cast<double>(std::numeric_limits<float>::max()))) {
    return kWholeShare + 1;
  }
  return static_cast<std::int64_t>(std::ceil(std::ldexp(magnitude, 40 - 128)));
}

}  // namespace attnd::engine

// Sums of runs of blocks, from which the sums of a sliding window are added up.
//
// A node of level l holds the sums of 2^l blocks whose first has an index that is a multiple of 2^l
// (the dyadic grid), so that it is a pure function of those tokens. Level 0 is one block's f32
// sums; above, a node is the f64 sum of its two halves. Where features are scaled
// (row_exponents.h) a node takes the largest exponent of its blocks.
//
// A window that has passed the first block of a node still needs the others, and no sum that holds
// the first: the node's right half, then the right half of its left half, and so on. That is the
// node's list `rest`. So of every pair of halves only the right one is kept, and 2^l blocks take
// 2^(l-1) nodes of level 0 and as many above it.
//
// Nodes are immutable and shared by the states whose windows they are in.
#ifndef ATTND_ENGINE_LINEAR_SUM_NODE_H_
#define ATTND_ENGINE_LINEAR_SUM_NODE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

struct SumNode;
using SumNodePtr = std::shared_ptr<const SumNode>;

struct SumList {
  SumNodePtr node;
  std::shared_ptr<const SumList> next;
};

struct SumNode {
  // A node without sums, for its maker to fill.
  SumNode(const LinearDims& dims, std::int64_t kv_heads, std::int64_t node_level);

  std::int64_t level;
  AlignedBuffer<float> block;           // [H][dims.totals()], level 0
  AlignedBuffer<double> totals;         // [H][dims.totals()], other levels
  std::vector<std::int32_t> exponents;  // [H]: sums are times 2 to this power
  // [H]: how much of the range of f32 the sums may take, see ShareOf().
  std::vector<std::int64_t> shares;
  std::int64_t unmasked = 0;            // tokens
  std::shared_ptr<const SumList> rest;  // without the first block
};

// The node of two neighbours of equal level. Throws std::bad_alloc.
SumNodePtr JoinNodes(const LinearDims& dims, const SumNodePtr& left, const SumNodePtr& right);

// totals += the head's sums, brought from their exponent to `exponent`, which is at least theirs;
// kNoExponent where features are not scaled or all sums are zeros.
void AddNode(const LinearDims& dims, const SumNode& node, std::int64_t head, std::int32_t exponent,
             double* totals);

// Memory of one node, and of a node with all that its list keeps.
std::int64_t NodeBytes(const LinearDims& dims, std::int64_t kv_heads, std::int64_t level);
std::int64_t KeptBytes(const LinearDims& dims, std::int64_t kv_heads, std::int64_t level);

// The part of the range of f32 that sums of this magnitude take, in units of 2^-40, rounded up:
// whole numbers, so that shares add up to the same in any order. Any sum of sums whose shares are
// kWholeShare together is finite in f32, whichever of them leave a window first and whatever
// exponents are left. More than kWholeShare for what is not finite.
std::int64_t ShareOf(double magnitude);
inline constexpr std::int64_t kWholeShare = (std::int64_t{1} << 40) - (std::int64_t{1} << 16);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_SUM_NODE_H_

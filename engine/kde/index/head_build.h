// Building the index of one span and kv-head, in steps: gather the keys, put them in leaves, let
// them change leaves, write the leaves with their summaries, and learn from the span's own keys how
// good summaries are. A main span also learns what leaves have in common; others borrow that, and
// the shortest do without.
//
// A pure function of the tokens and of the leaves that they lay in before. Not thread-safe; a step
// may throw std::bad_alloc, after which the build is to be dropped.
#ifndef ATTND_ENGINE_KDE_INDEX_HEAD_BUILD_H_
#define ATTND_ENGINE_KDE_INDEX_HEAD_BUILD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/kde/index/first_leaves.h"
#include "engine/kde/index/head_index.h"
#include "engine/kde/index/index_span.h"
#include "engine/kde/index/mass_calibration.h"
#include "engine/kde/index/twin_keys.h"
#include "engine/kde/value_spread.h"
#include "engine/scratch.h"

namespace attnd::engine {

class HeadBuild {
 public:
  // `input` outlives this. `scale`: of query rows.
  HeadBuild(const BlockLayout& layout, const SpanInput& input, std::int64_t head, float scale);

  // Does the next step: of a few hundred microseconds for most. Longer ones, up to 50 ms for the
  // longest spans of 128 components: gathering all keys, putting leaves in order, finding the keys
  // that look for twins, reassigning a group (15 ms), what calibration ends with.
  void Step(Scratch& scratch);
  bool done() const { return stage_ == Stage::kDone; }
  // How much of the work is done, 0 to 1.
  double progress() const { return done_cost_ / total_cost_; }

  std::unique_ptr<const HeadIndex> Take() { return std::move(index_); }

  // Memory that a build takes beside the index it makes.
  static std::int64_t WorkBytes(const BlockLayout& layout, std::int64_t tokens);

  // Spans of up to 16 leaves take their table of errors from their lender, where that has one.
  static constexpr std::int64_t kMostBorrowingTokens = 4 * kLeastLadderTokens;

 private:
  enum class Stage {
    kGather,
    kFirstLeaves,
    kReassign,
    kTwins,
    kLeaves,
    kSlopes,
    kBranches,
    kCalibrate,
    kDone
  };

  void PlanCosts();
  void Gather();
  void GatherSpan(const HeadIndex& from, std::int64_t offset, std::vector<std::int32_t>& loose);
  void GatherBlock(const BlockView<float>& block, const std::int32_t* rows);
  bool joins_twins() const;
  std::int64_t NearPieces() const;
  // Neighbouring leaves of so many keys: the piece-th part of order_.
  std::span<std::int32_t> Piece(std::int64_t piece, std::int64_t keys);
  void Reassign(Scratch& scratch);
  void BeginMetric(bool fits);
  void WriteLeaf(std::int64_t leaf);
  void SetSlope(std::int64_t leaf, Scratch& scratch);
  LeafMeans Means(std::int64_t leaf) const {
    return index_->means(leaf, roots_.data() + leaf * kBlockTokens);
  }
  bool is_main() const { return input_.lender == nullptr; }
  const HeadIndex& lender() const { return *input_.lender->heads[static_cast<std::size_t>(head_)]; }
  // Short spans take what their lender found, unless it had nothing to learn from.
  bool calibrates() const {
    return is_main() || input_.span.tokens > kMostBorrowingTokens ||
           !(lender().errors().spread > 0);
  }
  void Advance(double cost, std::int64_t steps, Stage next);

  const BlockLayout layout_;
  const SpanInput& input_;
  const std::int64_t head_;
  const float scale_;
  std::unique_ptr<HeadIndex> index_;

  Stage stage_ = Stage::kGather;
  std::int64_t step_ = 0;  // of the stage
  double done_cost_ = 0.0;
  double total_cost_ = 1.0;
  double first_leaves_cost_ = 0.0;
  double reassign_cost_ = 0.0;

  AlignedBuffer<float> keys_;         // [keys, d_k] in the order of tokens
  std::vector<const float*> values_;  // [keys] rows where they lie
  std::vector<std::int32_t> tokens_;  // [keys]
  std::vector<std::int32_t> order_;   // [keys] rows of keys_, leaf by leaf
  std::vector<float> roots_;          // [leaves][64], of the keys' weights in their leaves
  std::int64_t kept_leaves_ = 0;      // full leaves at the beginning of order_, after gathering
  std::optional<FirstLeaves> first_leaves_;
  std::optional<TwinKeys> twins_;
  bool grouped_ = false;  // isolated keys were set apart
  ValueSpread values_seen_;
  std::shared_ptr<LeafMetric> metric_;  // that is being learned
  std::optional<MassCalibration> calibration_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_HEAD_BUILD_H_

// The audits of one plan: what the rows that are audited keep beside their tile, from the end of
// the summaries until the plan ends. See row_audit.h.
//
// Chains may be used by different threads at the same time; everything else is for one thread.
// Keeps its memory; Reset() may throw std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_PLAN_AUDITS_H_
#define ATTND_ENGINE_KDE_INDEX_PLAN_AUDITS_H_

#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/segment.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/index/audit_record.h"
#include "engine/kde/index/row_audit.h"

namespace attnd::engine {

// The audited rows of one chain, in the order of the tile's. Borrowed.
struct AuditRows {
  std::int64_t count = 0;
  float* queries = nullptr;   // [count, d_k], scaled
  SoftmaxSums predicted;      // of what the rows do not read, from summaries
  SoftmaxSums truth;          // of the same, evaluated
  RowMask* unread = nullptr;  // [count][words]: leaves
};

class PlanAudits {
 public:
  explicit PlanAudits(const BlockLayout& layout) : layout_(layout) {}

  // Memory for each row that a chain may audit.
  static std::int64_t RowBytes(const BlockLayout& layout, std::int64_t words);

  // Room for up to `rows` audits in each chain, with selections of `words` words; 0: none.
  void Reset(std::int64_t chains, std::int64_t rows, std::int64_t words);

  std::int64_t count(std::int64_t chain) const { return chains_[Index(chain)].count; }
  AuditRows RowsOf(std::int64_t chain);

  // Offers row `row` of the tile; of more than there is room for, those of the smallest tickets
  // stay.
  void Offer(std::int64_t chain, std::int64_t row, std::uint64_t ticket);
  // After all offers: puts the rows in order.
  void Choose(std::int64_t chain);
  // Row of the tile that audit i is about.
  std::int64_t row(std::int64_t chain, std::int64_t i) const { return entry(chain, i).row; }

  // What came out: error over prediction. Ignored where it is not finite.
  void SetRatio(std::int64_t chain, std::int64_t i, double ratio);
  // Tells `record` of the ratios of chains [first, end), in order, as `head`'s.
  void Tell(std::int64_t first, std::int64_t end, const AuditKind& kind, std::int64_t head,
            AuditRecord& record) const;

 private:
  struct Entry {
    std::uint64_t ticket = 0;
    std::int64_t row = 0;
    float ratio = -1.0F;  // none yet
  };
  struct Chain {
    std::int64_t count = 0;
  };

  static std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }
  const Entry& entry(std::int64_t chain, std::int64_t i) const {
    return entries_[Index(chain * rows_ + i)];
  }

  const BlockLayout layout_;
  std::int64_t rows_ = 0;
  std::int64_t words_ = 0;
  std::vector<Chain> chains_;
  std::vector<Entry> entries_;     // [chains][rows]
  AlignedBuffer<float> floats_;    // [chains] queries and sums
  AlignedBuffer<RowMask> unread_;  // [chains][rows][words]
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_PLAN_AUDITS_H_

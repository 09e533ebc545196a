// Audits of answered rows: which rows of a tile, and how wrong each of them was.
//
// A row's error comes from what it did not read. An audit evaluates that, and nothing else, into
// sums of its own: the answer's sums hold the same keys as summaries predicted them, and the
// difference of both gives the error, free of the rounding of what was read. Audits never touch an
// answer.
//
// Which rows: by a hash of the scaled query's bits and its position, and which large tiles at all
// by one of all their rows, so that the choice does not depend on time, and a row's chance not on
// how hard it is. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_INDEX_ROW_AUDIT_H_
#define ATTND_ENGINE_KDE_INDEX_ROW_AUDIT_H_

#include <algorithm>
#include <cstdint>

#include "engine/exact/softmax_sums.h"
#include "engine/kde/index/audit_record.h"

namespace attnd::engine {

// The most rows of a tile of `rows` rows that are audited at once; those of the smallest tickets.
constexpr std::int64_t MostAudits(std::int64_t rows) {
  return std::min(rows, std::max(std::int64_t{64}, rows / 12));
}

// Uniform over 64 bits. `position`: of the query's own token, -1: not known.
std::uint64_t AuditTicket(const float* query, std::int64_t dim, std::int64_t position);

// Whether a row is among the share `chance`, 0 to 1, that is audited.
bool IsAudited(std::uint64_t ticket, double chance);

// Work of an answer, and of an audit of it, in the same unit; and what may be spent on audits, in
// parts of the work of answers. No more than one row in four is audited.
double AuditChance(double answer_work, double audit_work, double share);

// The share of tiles of `rows` rows that are audited at all, where each row's chance is to be
// `chance`: audits that read the keys together cost less. In a batch of 8,192 queries over 32,000
// keys, in tiles of 768, 4 audits in each of 11 cost 10 % of the answers, and so do 12 in each
// of 7.
double TileChance(double chance, std::int64_t rows);

// Error of a row with sums [d_v], as an L2 norm: the answer's, in which the keys that were not read
// are `predicted`, against what it would be with `truth` for them. Row r of each. NaN where
// arithmetic leaves its range.
double AuditedError(const SoftmaxSums& answer, std::int64_t answer_row,
                    const SoftmaxSums& predicted, const SoftmaxSums& truth, std::int64_t audit_row,
                    std::int64_t value_dim);

// How wrong a row is predicted to be, in spreads, up to a factor that audits find: the geometric
// mean of the deviation that its unread leaves predict and of their share of its weight.
//
// The deviation alone says nothing where a leaf's keys are not normal, as in peaked heads, where it
// may be off by 10^6; the share alone does not see how alike the keys of a leaf are. Factors that
// cover 97 % of rows, over all sets and targets tried, need bars with medians of at most 2.9 (the
// mean of both), 4.6 (the share) and 2.3 (the deviation) times the errors' 95 % quantile for word
// vectors, and of 0.8, 0.9 and 2.9 for a language model's heads of 64.
double RowDeviation(double deviation, double unread_share);

// The error that is stated of a row.
double StatedError(double deviation, double unread_share, const AuditedFactor& audited);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_ROW_AUDIT_H_

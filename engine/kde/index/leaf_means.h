// Means of leaves, while keys are still being moved between them: rows of a key matrix in an order,
// leaf by leaf, 64 each but for the last.
//
// Sums in f64. Pure functions; thread-safe; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_LEAF_MEANS_H_
#define ATTND_ENGINE_KDE_INDEX_LEAF_MEANS_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/kde/index/bisection.h"
#include "engine/scratch.h"

namespace attnd::engine {

// The means as columns [dim][columns], and minus half their squared lengths; columns beyond the
// leaves: zeros and -inf.
void MeanColumns(const KeyMatrix& keys, std::span<const std::int32_t> order, std::int64_t columns,
                 float* means_t, float* offsets);

// scores[i][leaf] = key rows[i] . mean: with its offset the nearest mean has the largest.
// [GemmPaddedRows of the rows][columns].
void ScoreKeys(const KeyMatrix& keys, std::span<const std::int32_t> rows, std::int64_t columns,
               const float* means_t, float* scores, Scratch& scratch);

// Squared distances of keys from the means of their leaves, with their places in `order`.
void DistancesFromMeans(const KeyMatrix& keys, std::span<const std::int32_t> order,
                        std::vector<std::pair<float, std::int32_t>>& distances);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_MEANS_H_

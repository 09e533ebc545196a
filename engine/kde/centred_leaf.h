// A leaf's keys and values about their means, as operands of products. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_CENTRED_LEAF_H_
#define ATTND_ENGINE_KDE_CENTRED_LEAF_H_

#include "engine/kde/head_index.h"

namespace attnd::engine {

// keys [64][padded d_k] and values [64][padded d_v] minus the leaf's means; padding and rows beyond
// the leaf's keys are zeros.
void CentreLeaf(const HeadIndex& index, std::int64_t leaf, float* keys, float* values);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CENTRED_LEAF_H_

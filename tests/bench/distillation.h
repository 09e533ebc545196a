// A small deterministic training of the learned map exp(W x), so that the table of errors can show
// what weights make of it.
//
// Loss: as Hedgehog's (Zhang et al. 2024, arXiv:2402.04347), the cross-entropy of the weights
// phi(q) . phi(k) / sum over keys under those of softmax attention, exp(q . k) / sum. W of keys (by
// kv-head) and of queries (by query head) begin as I above -I, after which the halves are free, and
// take steps of Adam (Kingma & Ba 2015, arXiv:1412.6980) on some rows at a time, in f64. The same
// numbers on every run.
//
// Pure; any thread. Weights that are not finite end the program.
#ifndef ATTND_TESTS_BENCH_DISTILLATION_H_
#define ATTND_TESTS_BENCH_DISTILLATION_H_

#include <memory>

#include "engine/linear/map_weights.h"
#include "tests/bench/map_list.h"

namespace attnd::bench {

// Weights for the shape's heads, 2 d features each. Requires a scale of 1. About a quarter of a
// second for each query head with d = 15.
std::shared_ptr<const engine::MapWeights> DistilSoftmax(const Sample& sample);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_DISTILLATION_H_

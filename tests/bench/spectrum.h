// Norms and singular values of softmax matrices D^-1 A and of matrices of outputs, for the study of
// the kde engine. f64 but for the products. One thread; not thread-safe.
#ifndef ATTND_TESTS_BENCH_SPECTRUM_H_
#define ATTND_TESTS_BENCH_SPECTRUM_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/kde/paper/column_sampling.h"

namespace attnd::bench {

// The largest singular value of a dense matrix [rows, cols] of few columns, by power iteration on
// its Gram matrix.
double OperatorNorm(const std::vector<float>& matrix, std::int64_t cols);
double FrobeniusNorm(const std::vector<float>& matrix);

// ||D^-1 A||_op by six rounds of power iteration from the vector of ones, without keeping the
// matrix: at most a few per cent too small.
double SoftmaxOperatorNorm(const engine::AttentionInputs& inputs);

// D^-1 A [queries, keys] in f32, leaving out the entries for which skip(query, key).
std::vector<float> SoftmaxMatrix(
    const engine::AttentionInputs& inputs,
    const std::function<bool(std::int64_t query, std::int64_t key)>& skip);

// The `count` largest singular values of a dense square matrix, descending: subspace iteration with
// a block of 192.
inline constexpr std::int64_t kMostSingularValues = 128;
std::vector<double> SingularValues(const std::vector<float>& matrix, std::int64_t size,
                                   std::int64_t count);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SPECTRUM_H_

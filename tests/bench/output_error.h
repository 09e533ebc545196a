// How far approximate outputs are from exact ones, as the literature on approximate attention
// measures it: relative to the outputs themselves. Beside the operator norm, which the mean row
// decides, stand the Frobenius norm and the rows' own errors. Thread-safe; cannot fail.
#ifndef ATTND_TESTS_BENCH_OUTPUT_ERROR_H_
#define ATTND_TESTS_BENCH_OUTPUT_ERROR_H_

#include <cstdint>
#include <span>
#include <vector>

namespace attnd::bench {

struct OutputError {
  double operator_norm = 0;  // ||O~ - O|| / ||O||, largest singular values
  double frobenius = 0;      // the same with the Frobenius norm
  double row_median = 0;     // of ||o~ - o|| / ||o||
  double row_p99 = 0;
  double row_max = 0;
};

// `outputs` and `exact` hold rows of `dim` numbers. Requires rows, and an exact row that is not 0.
OutputError CompareOutputs(std::span<const float> outputs, std::span<const float> exact,
                           std::int64_t dim);

// The constant answer: the mean of values [n, dim], as often as there are rows.
std::vector<float> MeanValueRows(std::span<const float> values, std::int64_t dim,
                                 std::int64_t rows);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_OUTPUT_ERROR_H_

// How far a feature map's answers are from softmax attention on real tensors, and what they cost.
//
// The error of a row is ||output - softmax attention||, in units of the spread of its head's
// values, the root mean square of ||v - mean v||. (An error relative to ||output|| has no bound.)
// Every query sees the whole context. Softmax attention is the exact engine's. Times are the
// calling thread's processor time, per row of one head, the median of several runs.
#ifndef ATTND_TESTS_BENCH_SOFTMAX_ERROR_H_
#define ATTND_TESTS_BENCH_SOFTMAX_ERROR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/map_list.h"
#include "tests/data/real_data.h"

namespace attnd::bench {

struct Errors {
  double root_mean_square = 0;
  double percentile_99 = 0;
  double refused = 0;  // share of rows that the guard answered with zeros, which count as they are
};

struct Costs {
  std::int64_t state_bytes = 0;  // all that a head takes after the set's tokens
  double append_us = 0;          // a token
  double attend_us = 0;          // a query
};

struct MapFigures {
  Errors errors;
  Costs costs;
  std::int64_t features = 0;   // c
  std::int64_t sum_bytes = 0;  // S and Z of a head in f64
  double least_sharpness = 0;
  double largest_sharpness = 0;
};

// A set of tensors and its softmax attention.
class SoftmaxTruth {
 public:
  // Both sides get the square root of the set's scale, and the scale becomes 1: a map of q . k does
  // not see the difference, and one that is applied to each side gets its fair share.
  explicit SoftmaxTruth(data::TensorSet set);

  const data::TensorSet& set() const { return set_; }
  // Of softmax attention itself.
  const Costs& costs() const { return costs_; }
  // Random maps with several seeds, whose rows are taken together. A map is fitted to the set's own
  // tokens, or to those of another one with the same layers.
  MapFigures Measure(const BenchMap& map) const { return Measure(map, set_); }
  MapFigures Measure(const BenchMap& map, const data::TensorSet& fitted_to) const;
  // Of the answer mean(V) to every query.
  Errors OfMeanValue() const;

 private:
  // Adds the error of each row of outputs [tokens, Hq, d_v].
  void AddErrors(std::size_t layer, const std::vector<float>& outputs,
                 std::vector<double>& errors) const;

  data::TensorSet set_;
  Costs costs_;
  std::vector<std::vector<float>> outputs_;   // by layer, of softmax attention
  std::vector<std::vector<double>> means_;    // by layer, [H, d_v]
  std::vector<std::vector<double>> spreads_;  // by layer, [H]
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SOFTMAX_ERROR_H_

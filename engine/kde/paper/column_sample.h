// The sampling matrix Pi of KDEformer (arXiv:2302.02451, Algorithm 1): m columns drawn one by one
// with probabilities p, row r of Pi being e_{l_r}^T / sqrt(m p_{l_r}).
//
// Pi^T Pi is diagonal: column l has the weight c_l / (m p_l), where c_l is how often it was drawn,
// and the expectation of that is 1 wherever p_l > 0. So a sample is kept as its distinct columns
// and the logarithms of their weights. Plain values; any thread.
#ifndef ATTND_ENGINE_KDE_PAPER_COLUMN_SAMPLE_H_
#define ATTND_ENGINE_KDE_PAPER_COLUMN_SAMPLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kde/rows.h"

namespace attnd::engine {

struct ColumnSample {
  std::vector<std::int64_t> columns;  // ascending, each once
  std::vector<double> log_weights;    // ln(c_l / (m p_l))
};

// Draws may be independent, as Algorithm 1 has them, or stratified: draw r falls into the r-th of m
// equal parts of the probability, in the columns' order. The weights' expectations are the same;
// the variance is lower where neighbouring columns are alike.
enum class Draws { kIndependent, kStratified };

// `draws` columns, at least 1, with the given probabilities, which add up to 1 but for rounding.
// From as many draws as there are columns on, every column once with the weight 1: that costs no
// more and has no error.
ColumnSample DrawColumns(std::span<const double> probabilities, std::int64_t draws, Draws kind,
                         std::uint64_t seed);

// Shares of a mixture, each a list of shares of the same length or empty, in which case it is left
// out: the mean of the lists.
std::vector<double> MeanShares(std::span<const std::vector<double>> lists);

// e^x_i / sum_j e^x_j. All -inf: empty.
std::vector<double> SharesOfLogs(std::span<const double> logs);

// x_i / sum_j x_j. All zeros: empty.
std::vector<double> SharesOf(std::vector<double> numbers);

// ||v_i||^2 / ||V||_F^2. All zeros: empty.
std::vector<double> SharesOfNorms(Rows values);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_COLUMN_SAMPLE_H_

// A sum of positive numbers that are known by their natural logarithms, which may be far outside of
// what f64 holds. An empty sum is 0, its logarithm -inf. Plain value; any thread.
#ifndef ATTND_ENGINE_KDE_PAPER_LOG_SUM_H_
#define ATTND_ENGINE_KDE_PAPER_LOG_SUM_H_

#include <cmath>
#include <limits>

namespace attnd::engine {

inline constexpr double kLogZero = -std::numeric_limits<double>::infinity();

class LogSum {
 public:
  void Add(double log_term) {
    if (log_term == kLogZero) return;
    if (log_term <= max_) {
      sum_ += std::exp(log_term - max_);
    } else {
      sum_ = sum_ * std::exp(max_ - log_term) + 1;
      max_ = log_term;
    }
  }

  double Log() const { return sum_ == 0 ? kLogZero : max_ + std::log(sum_); }

 private:
  double max_ = kLogZero;
  double sum_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_LOG_SUM_H_

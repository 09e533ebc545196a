#include "tests/oracle/relative_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace attnd::oracle {

double RelativeError(const std::vector<float>& answers, const std::vector<double>& truth) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (answers.size() != truth.size() || answers.empty()) return kInfinity;
  double error = 0;
  double largest = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto answer = static_cast<double>(answers[i]);
    if (std::isinf(answer) && answer == truth[i]) continue;
    if (!std::isfinite(answer) || !std::isfinite(truth[i])) return kInfinity;
    error = std::max(error, std::abs(answer - truth[i]));
    largest = std::max(largest, std::abs(truth[i]));
  }
  return error == 0 ? 0 : error / largest;
}

}  // namespace attnd::oracle

#include "client/demo/difference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace attnd::demo {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

void Difference::Add(std::span<const float> outputs, std::span<const double> expected) {
  if (outputs.size() != expected.size()) {
    absolute_ = kInfinite;
    return;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(double{outputs[i]} - expected[i]);
    // A NaN itself would be lost at the next number: it compares with nothing.
    absolute_ = std::isfinite(error) ? std::max(absolute_, error) : kInfinite;
    if (std::isfinite(expected[i])) scale_ = std::max(scale_, std::abs(expected[i]));
  }
}

double Difference::relative() const { return scale_ > 0 ? absolute_ / scale_ : absolute_; }

}  // namespace attnd::demo

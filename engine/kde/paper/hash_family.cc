#include "engine/kde/paper/hash_family.h"

#include <algorithm>
#include <cmath>

namespace attnd::engine {
namespace {

double LogAgreement(double r) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
  if (r < 1e-6) return -r * kSqrtTwoOverPi;
  // Far beyond, the difference is its first term.
  if (r > 1e4) return std::log(kSqrtTwoOverPi / (2 * r));
  return std::log(std::erf(kSqrtHalf / r) + r * kSqrtTwoOverPi * std::expm1(-0.5 / (r * r)));
}

}  // namespace

HashFamily::HashFamily(double log_mu)
    : log_mu_(log_mu), width_(std::sqrt(2 * std::max(-log_mu, 1.0))) {
  // So many that no density is ever asked for with them.
  constexpr double kMostFunctions = 1e9;
  const double wanted = std::ceil(log_mu / 2 / LogAgreement(1.0));
  functions_ = static_cast<std::int64_t>(std::clamp(wanted, 1.0, kMostFunctions));
}

double HashFamily::LogCollision(double distance) const {
  return static_cast<double>(functions_) * LogAgreement(distance / width_);
}

}  // namespace attnd::engine

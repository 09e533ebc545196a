#include "engine/linear/denominator_guard.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace attnd::engine {

Guarded ApplyGuard(const LinearConfig& config, float denominator) {
  if (!config.normalized) return {1.0F, RowFlag::kOk};
  const float epsilon = config.guard_epsilon;
  const RowFlag flag = denominator >= epsilon ? RowFlag::kOk
                       : denominator > 0      ? RowFlag::kTiny
                                              : RowFlag::kNonPositive;
  switch (config.guard) {
    case GuardPolicy::kStrict:
      return {flag == RowFlag::kOk ? denominator : 0.0F, flag};
    case GuardPolicy::kAddEpsilon:
      return {std::max(denominator + epsilon, 0.0F), flag};
    case GuardPolicy::kClamp:
      return {std::max(denominator, epsilon), flag};
  }
  return {0.0F, flag};
}

absl::Status ValidateGuard(const LinearConfig& config) {
  if (std::isfinite(config.guard_epsilon) && config.guard_epsilon > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("guard.epsilon is ", config.guard_epsilon, "; it must be positive and finite"));
}

}  // namespace attnd::engine

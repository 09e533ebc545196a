#include "engine/kde/index/audit_window.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace attnd::engine {

std::int64_t ConformalRank(std::int64_t audits) {
  constexpr double kCoverage = 0.95;
  const auto count = static_cast<double>(audits);
  const double share = kCoverage + 1.28 * std::sqrt(kCoverage * (1.0 - kCoverage) / count);
  return std::min(static_cast<std::int64_t>(std::ceil((count + 1.0) * share)), audits);
}

void AuditWindow::Add(float ratio) {
  ratios_[static_cast<std::size_t>(next_)] = ratio;
  next_ = (next_ + 1) % kAudits;
  audits_ = std::min(audits_ + 1, kAudits);
  if (!learned()) return;
  std::array<float, kAudits> sorted = ratios_;
  const auto rank = sorted.begin() + (ConformalRank(audits_) - 1);
  std::nth_element(sorted.begin(), rank, sorted.begin() + audits_);
  factor_ = *rank;
}

}  // namespace attnd::engine

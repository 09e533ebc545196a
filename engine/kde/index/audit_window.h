// What audited answers say about predicted errors: the newest ratios of a true error to the
// predicted one, and the factor that follows from them.
//
// Split conformal prediction (Vovk et al. 2005; Papadopoulos et al. 2002): of m exchangeable ratios
// the k-th smallest is not exceeded by a further one with probability k / (m + 1). Over windows of
// m ratios that share is Beta(k, m + 1 - k) distributed, so that the rank for a mean of 95 % falls
// below it for half of all windows; the rank here leaves room for 1.28 standard deviations, and
// nine windows in ten cover at least 95 %.
//
// Not synchronised; cannot fail.
#ifndef ATTND_ENGINE_KDE_INDEX_AUDIT_WINDOW_H_
#define ATTND_ENGINE_KDE_INDEX_AUDIT_WINDOW_H_

#include <array>
#include <cstdint>

namespace attnd::engine {

// Which of `audits` ratios, in ascending order and counted from 1, is the factor: the smallest k
// with k / (m + 1) >= 0.95 + 1.28 sqrt(0.95 * 0.05 / m), or all of them. At least 1 audit.
std::int64_t ConformalRank(std::int64_t audits);

class AuditWindow {
 public:
  static constexpr std::int64_t kAudits = 256;  // that are kept
  static constexpr std::int64_t kEnough = 200;  // for errors to be called calibrated
  // Below this many, what they say is worth less than what the context's own keys said.
  static constexpr std::int64_t kFewest = 20;

  // Takes the place of the oldest where the window is full. A ratio is at least 0 and finite.
  void Add(float ratio);

  std::int64_t audits() const { return audits_; }
  bool calibrated() const { return audits_ >= kEnough; }
  bool learned() const { return audits_ >= kFewest; }
  // What predicted errors are to be multiplied with; 1 where nothing is learned yet.
  float factor() const { return factor_; }

 private:
  std::array<float, kAudits> ratios_{};
  std::int64_t audits_ = 0;
  std::int64_t next_ = 0;
  float factor_ = 1.0F;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_AUDIT_WINDOW_H_

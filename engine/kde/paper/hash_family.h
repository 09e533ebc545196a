// Hash functions under which near points collide: k functions floor((g . x) / w + b) with g ~ N(0,
// I) and b ~ U(0, 1) each (Datar et al. 2004), all of which must agree.
//
// Two points at distance c agree under one function with the probability
//   p1(c / w), p1(r) = erf(1 / (sqrt(2) r)) - r sqrt(2 / pi) (1 - exp(-1 / (2 r^2))),
// over g and b, and under all with its k-th power. For a density of at least mu the kernel's values
// reach down to about mu, at the distance R = sqrt(2 ln(1 / mu)). With w = R and p1(1)^k = sqrt(mu)
// a point at distance 0 collides always and one at distance R with the square root of its kernel
// value, the choice that hashing-based estimators ask for (Charikar and Siminelakis 2017).
// Immutable; any thread.
#ifndef ATTND_ENGINE_KDE_PAPER_HASH_FAMILY_H_
#define ATTND_ENGINE_KDE_PAPER_HASH_FAMILY_H_

#include <cstdint>

namespace attnd::engine {

class HashFamily {
 public:
  explicit HashFamily(double log_mu);

  double width() const { return width_; }                // w
  std::int64_t functions() const { return functions_; }  // k, at least 1
  // ln of the probability that two points at this distance collide.
  double LogCollision(double distance) const;

  // ln of the relative variance of one sample where mu~ is mu, as assumed: 1 / sqrt(mu) for terms
  // near 0 and near R. The worst arrangement of points (half way in between) has mu^(-3/4).
  double log_relative_variance() const { return -log_mu_ / 2; }

 private:
  double log_mu_;
  double width_;
  std::int64_t functions_ = 1;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_HASH_FAMILY_H_

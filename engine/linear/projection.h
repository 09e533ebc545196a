// Random projections of the maps that estimate exp(q . k): m rows w ~ N(0, I_d), in blocks of d
// orthogonal rows (Choromanski et al. 2021, arXiv:2009.14794, section 3.2), which lowers the
// variance of every estimate.
//
// The numbers are specified (engine/random.h), because a session's features must be the same after
// a restart, on another machine and with another standard library. Blocks in order: d normal rows
// of d numbers, orthonormalised in order by Gram-Schmidt applied twice, then each row i times the
// length of one more normal row. All in f64 with +, -, *, /, sqrt, in the order written, rounded to
// f32 once.
//
// Immutable; any thread.
#ifndef ATTND_ENGINE_LINEAR_PROJECTION_H_
#define ATTND_ENGINE_LINEAR_PROJECTION_H_

#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/digest.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Making one takes m d^2 operations of a few nanoseconds: about 50 ms.
inline constexpr std::int64_t kMaxProjectionOperations = 1 << 24;

// The number of projections that Performer's authors suggest: d ln d, here rounded to a multiple of
// 16, at least 16.
std::int64_t DefaultProjections(std::int64_t dim);

class Projection {
 public:
  // `count` projections of rows of `dim` numbers. Requires count * dim^2 <=
  // kMaxProjectionOperations.
  Projection(std::uint64_t seed, std::int64_t count, std::int64_t dim);

  std::int64_t count() const { return count_; }
  std::int64_t dim() const { return dim_; }
  // The columns of Project()'s result: count, rounded up; those beyond are zeros.
  std::int64_t columns() const { return columns_; }

  // ||w_j||^2.
  double norm_squared(std::int64_t j) const { return norms_[static_cast<std::size_t>(j)]; }

  // x W^T for dense rows x [n, dim]: [n, columns], in `scratch`, so until its frame ends. A row's
  // bits depend on that row alone. The rows of x up to the next row count of engine/gemm.h must be
  // readable.
  const float* Project(const float* x, std::int64_t n, Scratch& scratch) const;

  // XXH3 of the f32 rows w_1 ... w_m.
  Digest digest() const;

 private:
  std::int64_t count_;
  std::int64_t dim_;
  std::int64_t columns_;
  AlignedBuffer<float> transposed_;  // [dim, columns]
  std::vector<double> norms_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_PROJECTION_H_

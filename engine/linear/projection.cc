#include "engine/linear/projection.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/gemm.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

using Row = std::vector<double>;

// ln x for x in (0, 1): x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1))
// by its series. Not std::log, whose last bit differs between libraries.
double Log(double x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  constexpr double kLn2 = 0.69314718055994530942;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < kSqrtHalf) {
    mantissa *= 2;
    --exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1);
  const double z2 = z * z;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * z2 + 1.0 / k;
  return exponent * kLn2 + 2 * z * sum;
}

class NormalGenerator {
 public:
  explicit NormalGenerator(std::uint64_t seed) : state_(seed) {}

  double Next() {
    if (has_second_) {
      has_second_ = false;
      return second_;
    }
    while (true) {
      const double a = 2 * Uniform() - 1;
      const double b = 2 * Uniform() - 1;
      const double s = a * a + b * b;
      if (s >= 1 || s == 0) continue;
      const double factor = std::sqrt(-2 * Log(s) / s);
      second_ = b * factor;
      has_second_ = true;
      return a * factor;
    }
  }

  Row NextRow(std::int64_t dim) {
    Row row(static_cast<std::size_t>(dim));
    for (double& x : row) x = Next();
    return row;
  }

 private:
  std::uint64_t NextBits() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  double Uniform() { return (static_cast<double>(NextBits() >> 11) + 0.5) * 0x1p-53; }

  std::uint64_t state_;
  double second_ = 0;
  bool has_second_ = false;
};

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Length(const Row& row) { return std::sqrt(Dot(row, row)); }

// `dim` rows of length 1, orthogonal to each other.
std::vector<Row> OrthonormalRows(std::int64_t dim, NormalGenerator& normal) {
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < dim; ++i) rows.push_back(normal.NextRow(dim));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        const double along = Dot(rows[i], rows[j]);
        for (std::size_t k = 0; k < rows[i].size(); ++k) rows[i][k] -= along * rows[j][k];
      }
      const double length = Length(rows[i]);
      for (double& x : rows[i]) x /= length;
    }
  }
  return rows;
}

}  // namespace

std::int64_t DefaultProjections(std::int64_t dim) {
  const auto d = static_cast<double>(dim);
  return std::max<std::int64_t>(RoundUp(static_cast<std::int64_t>(d * std::log(d)), 16), 16);
}

Projection::Projection(std::uint64_t seed, std::int64_t count, std::int64_t dim)
    : count_(count),
      dim_(dim),
      columns_(RoundUp(count, kGemmColumnMultiple)),
      transposed_(dim * columns_),
      norms_(static_cast<std::size_t>(count), 0.0) {
  NormalGenerator normal(seed);
  for (std::int64_t first = 0; first < count; first += dim) {
    const std::vector<Row> rows = OrthonormalRows(dim, normal);
    for (std::int64_t i = 0; i < dim; ++i) {
      const double length = Length(normal.NextRow(dim));
      const std::int64_t j = first + i;
      if (j >= count) continue;
      for (std::int64_t k = 0; k < dim; ++k) {
        const auto w = static_cast<float>(
            length * rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(k)]);
        transposed_.data()[k * columns_ + j] = w;
        norms_[static_cast<std::size_t>(j)] += static_cast<double>(w) * static_cast<double>(w);
      }
    }
  }
}

const float* Projection::Project(const float* x, std::int64_t n, Scratch& scratch) const {
  const std::int64_t padded = GemmPaddedRows(n);
  float* result = scratch.Take(padded * columns_);
  GemmNN(padded, columns_, dim_, x, dim_, transposed_.data(), columns_, /*accumulate=*/false,
         result, columns_);
  return result;
}

Digest Projection::digest() const {
  Digester digester;
  for (std::int64_t j = 0; j < count_; ++j) {
    for (std::int64_t k = 0; k < dim_; ++k) {
      const float w = transposed_.data()[k * columns_ + j];
      digester.Update(&w, sizeof w);
    }
  }
  return digester.Result();
}

}  // namespace attnd::engine

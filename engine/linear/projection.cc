#include "engine/linear/projection.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/gemm.h"
#include "engine/random.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

using Row = std::vector<double>;

Row NextRow(std::int64_t dim, NormalGenerator& normal) {
  Row row(static_cast<std::size_t>(dim));
  for (double& x : row) x = normal.Next();
  return row;
}

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Length(const Row& row) { return std::sqrt(Dot(row, row)); }

// `dim` rows of length 1, orthogonal to each other.
std::vector<Row> OrthonormalRows(std::int64_t dim, NormalGenerator& normal) {
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < dim; ++i) rows.push_back(NextRow(dim, normal));
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
      const double length = Length(NextRow(dim, normal));
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

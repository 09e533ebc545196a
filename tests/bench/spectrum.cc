#include "tests/bench/spectrum.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/gemm.h"
#include "engine/kde/paper/key_panels.h"
#include "engine/random.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"

namespace attnd::bench {
namespace {

using engine::AttentionInputs;
using engine::kPanelKeys;
using engine::kTileQueries;
using engine::Scratch;
using F64 = std::vector<double>;

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

double Length(const F64& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return std::sqrt(squares);
}

// Calls row(query, weights [keys]) with each row of D^-1 A.
void ForEachRow(const AttentionInputs& inputs,
                const std::function<void(std::int64_t, const float*)>& row) {
  engine::KeyPanels panels(inputs.keys.count, inputs.keys.dim);
  panels.PackAll(inputs.keys, nullptr, nullptr);
  Scratch scratch;
  const std::int64_t columns = panels.panels() * kPanelKeys;
  std::vector<float> weights(Size(kTileQueries * columns));
  for (std::int64_t first = 0; first < inputs.queries.count; first += kTileQueries) {
    const Scratch::Frame frame(scratch);
    const std::int64_t rows = std::min(kTileQueries, inputs.queries.count - first);
    const std::int64_t padded = engine::GemmPaddedRows(rows);
    engine::Rows tile = inputs.queries;
    tile.data = inputs.queries.row(first);
    const float* packed = engine::PackQueries(tile, nullptr, rows, inputs.scale, scratch);
    float* scores = scratch.Take(padded * kPanelKeys);
    for (std::int64_t p = 0; p < panels.panels(); ++p) {
      panels.Scores(packed, padded, p, scores);
      for (std::int64_t r = 0; r < rows; ++r) {
        std::copy_n(scores + r * kPanelKeys, kPanelKeys,
                    weights.data() + r * columns + p * kPanelKeys);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      float* w = weights.data() + r * columns;
      const std::int64_t keys = inputs.keys.count;
      engine::ExpShifted(w, engine::MaxOf(w, keys), 0.0F, w, keys);
      double sum = 0;
      for (std::int64_t j = 0; j < keys; ++j) sum += static_cast<double>(w[j]);
      engine::ScaleRow(w, static_cast<float>(1 / sum), w, keys);
      row(first + r, w);
    }
  }
}

// Columns of x [rows, cols] to orthonormal ones, in f64.
void Orthonormalise(std::vector<F64>& columns) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t j = 0; j < i; ++j) {
        double along = 0;
        for (std::size_t k = 0; k < columns[i].size(); ++k) along += columns[i][k] * columns[j][k];
        for (std::size_t k = 0; k < columns[i].size(); ++k) columns[i][k] -= along * columns[j][k];
      }
    }
    const double length = Length(columns[i]);
    for (double& x : columns[i]) x /= length;
  }
}

// Eigenvalues of a symmetric matrix by cyclic Jacobi rotations.
F64 Eigenvalues(std::vector<F64> a) {
  const std::size_t n = a.size();
  for (int sweep = 0; sweep < 12; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (std::abs(a[p][q]) < 1e-14 * std::sqrt(std::abs(a[p][p] * a[q][q]))) continue;
        const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1);
        const double s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double kp = a[k][p];
          const double kq = a[k][q];
          a[k][p] = c * kp - s * kq;
          a[k][q] = s * kp + c * kq;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double pk = a[p][k];
          const double qk = a[q][k];
          a[p][k] = c * pk - s * qk;
          a[q][k] = s * pk + c * qk;
        }
      }
    }
  }
  F64 values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(a[i][i]);
  std::sort(values.rbegin(), values.rend());
  return values;
}

// matrix [size, size] times columns, in f32.
std::vector<F64> Multiply(const std::vector<float>& matrix, std::int64_t size,
                          const std::vector<F64>& columns) {
  const auto cols = static_cast<std::int64_t>(columns.size());
  std::vector<float> right(Size(size * cols));
  for (std::int64_t i = 0; i < size; ++i) {
    for (std::int64_t c = 0; c < cols; ++c) {
      right[Size(i * cols + c)] = static_cast<float>(columns[Size(c)][Size(i)]);
    }
  }
  constexpr std::int64_t kRows = 64;
  std::vector<float> product(Size(kRows * cols));
  std::vector<F64> result(columns.size(), F64(Size(size)));
  for (std::int64_t first = 0; first < size; first += kRows) {
    engine::GemmNN(kRows, cols, size, matrix.data() + first * size, size, right.data(), cols,
                   /*accumulate=*/false, product.data(), cols);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        result[Size(c)][Size(first + r)] = static_cast<double>(product[Size(r * cols + c)]);
      }
    }
  }
  return result;
}

std::vector<F64> GramOf(const std::vector<F64>& columns) {
  std::vector<F64> gram(columns.size(), F64(columns.size(), 0.0));
  for (std::size_t i = 0; i < columns.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < columns[i].size(); ++k) sum += columns[i][k] * columns[j][k];
      gram[i][j] = gram[j][i] = sum;
    }
  }
  return gram;
}

}  // namespace

double OperatorNorm(const std::vector<float>& matrix, std::int64_t cols) {
  std::vector<F64> columns(Size(cols));
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    columns[i % Size(cols)].push_back(static_cast<double>(matrix[i]));
  }
  const std::vector<F64> gram = GramOf(columns);
  F64 x(Size(cols), 1.0);
  double value = 0;
  for (int round = 0; round < 200; ++round) {
    F64 y(x.size(), 0.0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < x.size(); ++j) y[i] += gram[i][j] * x[j];
    }
    value = Length(y) / Length(x);
    const double length = Length(y);
    if (length == 0) return 0;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = y[i] / length;
  }
  return std::sqrt(value);
}

double FrobeniusNorm(const std::vector<float>& matrix) {
  double squares = 0;
  for (const float x : matrix) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares);
}

double SoftmaxOperatorNorm(const AttentionInputs& inputs) {
  constexpr int kRounds = 6;
  F64 x(Size(inputs.keys.count), 1.0);
  double value = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double length = Length(x);
    std::vector<float> unit;
    for (const double v : x) unit.push_back(static_cast<float>(v / length));
    std::vector<float> next(x.size(), 0.0F);
    double squares = 0;
    ForEachRow(inputs, [&](std::int64_t /*query*/, const float* weights) {
      const double along = engine::DotF64(weights, unit.data(), inputs.keys.count);
      squares += along * along;
      const auto factor = static_cast<float>(along);
      for (std::size_t j = 0; j < next.size(); ++j) next[j] += factor * weights[j];
    });
    value = std::sqrt(squares);
    x.assign(next.begin(), next.end());
  }
  return value;
}

std::vector<float> SoftmaxMatrix(
    const AttentionInputs& inputs,
    const std::function<bool(std::int64_t query, std::int64_t key)>& skip) {
  std::vector<float> matrix;
  ForEachRow(inputs, [&](std::int64_t query, const float* weights) {
    for (std::int64_t j = 0; j < inputs.keys.count; ++j) {
      matrix.push_back(skip(query, j) ? 0.0F : weights[j]);
    }
  });
  return matrix;
}

std::vector<double> SingularValues(const std::vector<float>& matrix, std::int64_t size,
                                   std::int64_t count) {
  constexpr std::int64_t kBlock = 192;
  constexpr int kRounds = 5;
  std::vector<float> transposed(matrix.size());
  for (std::int64_t i = 0; i < size; ++i) {
    for (std::int64_t j = 0; j < size; ++j)
      transposed[Size(j * size + i)] = matrix[Size(i * size + j)];
  }
  engine::NormalGenerator normal(1);
  std::vector<F64> columns(kBlock, F64(Size(size)));
  for (F64& column : columns) {
    for (double& x : column) x = normal.Next();
  }
  for (int round = 0; round < kRounds; ++round) {
    Orthonormalise(columns);
    columns = Multiply(transposed, size, Multiply(matrix, size, columns));
  }
  Orthonormalise(columns);
  F64 values = Eigenvalues(GramOf(Multiply(matrix, size, columns)));
  values.resize(Size(std::min(count, kMostSingularValues)));
  for (double& value : values) value = std::sqrt(std::max(value, 0.0));
  return values;
}

}  // namespace attnd::bench

#include "engine/exact/softmax_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

SoftmaxSums::SoftmaxSums(float* memory, std::int64_t row_count, std::int64_t value_columns)
    : rows(row_count),
      padded_value_dim(value_columns),
      acc(memory),
      max(acc + row_count * value_columns),
      sum(max + row_count) {}

void SoftmaxSums::Clear() {
  std::fill_n(acc, rows * padded_value_dim, 0.0F);
  std::fill_n(max, rows, -kInfinity);
  std::fill_n(sum, rows, 0.0F);
}

void MergeSums(const SoftmaxSums& from, SoftmaxSums& into, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t columns = into.padded_value_dim;
  float* from_factor = scratch.Take(from.rows);
  float* into_factor = scratch.Take(from.rows);
  for (std::int64_t r = 0; r < from.rows; ++r) {
    const float max = std::max(from.max[r], into.max[r]);
    from_factor[r] = from.max[r] - max;
    into_factor[r] = into.max[r] - max;
    into.max[r] = max;
  }
  Exp(from_factor, from_factor, from.rows);
  Exp(into_factor, into_factor, from.rows);
  for (std::int64_t r = 0; r < from.rows; ++r) {
    if (into.max[r] == -kInfinity) {  // both see nothing, or one has overflowed
      into.sum[r] += from.sum[r];
      continue;
    }
    const float a = into_factor[r];
    const float b = from_factor[r];
    into.sum[r] = into.sum[r] * a + from.sum[r] * b;
    float* into_acc = into.acc + r * columns;
    const float* from_acc = from.acc + r * columns;
    for (std::int64_t c = 0; c < columns; ++c) into_acc[c] = into_acc[c] * a + from_acc[c] * b;
  }
}

RowFlag FlagOfRow(const SoftmaxSums& sums, std::int64_t row, std::int64_t value_dim) {
  if (!std::isfinite(sums.sum[row])) return RowFlag::kOverflow;
  if (sums.sum[row] == 0.0F) return RowFlag::kEmpty;  // else the largest key's weight of 1 is in it
  return AllFinite(sums.acc + row * sums.padded_value_dim, value_dim) ? RowFlag::kOk
                                                                      : RowFlag::kOverflow;
}

void WriteAnswerRows(const SoftmaxSums& sums, const RowTile& tile, std::int64_t value_dim,
                     const AnswerView& answer) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const RowFlag flag = FlagOfRow(sums, r, value_dim);
    const std::int64_t row = tile.tensor_row(r);
    float* output = answer.outputs + row * value_dim;
    float log_normalizer = -kInfinity;
    if (flag == RowFlag::kOk) {
      const float* acc = sums.acc + r * sums.padded_value_dim;
      const float sum = sums.sum[r];
      for (std::int64_t c = 0; c < value_dim; ++c) output[c] = acc[c] / sum + 0.0F;  // no -0
      log_normalizer =
          static_cast<float>(static_cast<double>(sums.max[r]) + std::log(static_cast<double>(sum)));
    } else {
      std::fill_n(output, value_dim, 0.0F);
      if (flag == RowFlag::kOverflow) log_normalizer = std::numeric_limits<float>::quiet_NaN();
    }
    if (answer.flags != nullptr) answer.flags[row] = static_cast<std::uint8_t>(flag);
    if (answer.log_normalizers != nullptr) answer.log_normalizers[row] = log_normalizer;
  }
}

}  // namespace attnd::engine

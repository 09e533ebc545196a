// The exact method: the softmax normalizer of the scores q . x_i - (||x_i||^2 + w_i^2) / 2, which
// is ln (n mu(q)) + ||q||^2 / 2, in f32 products, tile by tile.
//
// A score in f32 is off by about 2^-24 ||q|| ||x||. Where that is more than a density's last useful
// digit, the query is answered in f64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "engine/gemm.h"
#include "engine/kde/paper/density.h"
#include "engine/kde/paper/key_panels.h"
#include "engine/simd/softmax.h"

namespace attnd::engine {
namespace {

// Errors of scores stay below 2^-12 times a small number.
constexpr double kLargestProduct = 4096;
// 192 queries of d = 100: 20 million multiply-adds a step.
constexpr std::int64_t kStepPanels = 16;

class ExactDensity final : public Density {
 public:
  explicit ExactDensity(const DensityPoints& points) : points_(points) {
    const Rows& rows = points.rows;
    std::vector<double> biases;
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const double square = DotF64(rows.row(i), rows.row(i), rows.dim);
      largest_norm_ = std::max(largest_norm_, std::sqrt(square));
      biases.push_back(-(square + points.height_squared(i)) / 2);
    }
    // The largest bias is taken out in f64, so that f32 keeps what tells points apart.
    shift_ = *std::max_element(biases.begin(), biases.end());
    for (double& bias : biases) {
      bias = std::max(bias - shift_, static_cast<double>(-std::numeric_limits<float>::max()) / 2);
    }
    panels_ = KeyPanels(rows.count, rows.dim);
    panels_.PackAll(rows, nullptr, biases.data());
  }

  std::unique_ptr<DensityRun> Query(Rows queries, double* log_densities) const override;
  std::unique_ptr<DensityRun> Estimate(Rows queries, std::int64_t /*samples*/,
                                       double* log_densities) const override {
    return Query(queries, log_densities);
  }
  double Operations(std::int64_t queries) const override {
    return static_cast<double>(queries) * static_cast<double>(points_.rows.count) *
           static_cast<double>(points_.rows.dim + 1);
  }

 private:
  friend class ExactRun;

  DensityPoints points_;
  double largest_norm_ = 0;
  double shift_ = 0;
  KeyPanels panels_;
};

class ExactRun final : public DensityRun {
 public:
  ExactRun(const ExactDensity& density, Rows queries, double* log_densities)
      : density_(density),
        queries_(queries),
        log_densities_(log_densities),
        max_(kTileQueries),
        sum_(kTileQueries) {}

  bool Step(Scratch& scratch) override {
    if (first_ >= queries_.count) return true;
    const std::int64_t rows = std::min(kTileQueries, queries_.count - first_);
    if (panel_ == 0) {
      std::fill(max_.begin(), max_.end(), -std::numeric_limits<float>::infinity());
      std::fill(sum_.begin(), sum_.end(), 0.0F);
    }
    AddPanels(rows, scratch);
    if (panel_ < density_.panels_.panels()) return false;
    for (std::int64_t r = 0; r < rows; ++r) log_densities_[first_ + r] = Answer(r);
    evaluations_ += rows * density_.points_.rows.count;
    first_ += rows;
    panel_ = 0;
    return first_ >= queries_.count;
  }
  std::int64_t evaluations() const override { return evaluations_; }

 private:
  void AddPanels(std::int64_t rows, Scratch& scratch) {
    const Scratch::Frame frame(scratch);
    Rows tile = queries_;
    tile.data = queries_.row(first_);
    const float* packed = PackQueries(tile, nullptr, rows, 1.0F, scratch);
    const std::int64_t padded = GemmPaddedRows(rows);
    float* scores = scratch.Take(padded * kPanelKeys);
    float* corrections = scratch.Take(padded);
    const std::int64_t last = std::min(panel_ + kStepPanels, density_.panels_.panels());
    for (; panel_ < last; ++panel_) {
      density_.panels_.Scores(packed, padded, panel_, scores);
      const RowMask valid = density_.panels_.valid(panel_);
      OnlineSoftmaxBlock(scores, rows, &valid, 0, max_.data(), sum_.data(), corrections);
    }
  }

  double Answer(std::int64_t r) const {
    const Rows& points = density_.points_.rows;
    const float* query = queries_.row(first_ + r);
    const double square = DotF64(query, query, points.dim);
    const auto at = static_cast<std::size_t>(r);
    if (!std::isfinite(sum_[at]) || std::sqrt(square) * density_.largest_norm_ > kLargestProduct) {
      return RefLogDensity(density_.points_, query);
    }
    return static_cast<double>(max_[at]) + std::log(static_cast<double>(sum_[at])) - square / 2 +
           density_.shift_ - std::log(static_cast<double>(points.count));
  }

  const ExactDensity& density_;
  const Rows queries_;
  double* const log_densities_;
  std::vector<float> max_;
  std::vector<float> sum_;
  std::int64_t first_ = 0;  // query of the tile
  std::int64_t panel_ = 0;
  std::int64_t evaluations_ = 0;
};

std::unique_ptr<DensityRun> ExactDensity::Query(Rows queries, double* log_densities) const {
  return std::make_unique<ExactRun>(*this, queries, log_densities);
}

}  // namespace

std::unique_ptr<const Density> MakeExactDensity(const DensityPoints& points) {
  return std::make_unique<ExactDensity>(points);
}

}  // namespace attnd::engine

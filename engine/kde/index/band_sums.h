// Sums of rows by band: for every query and band a row of f64 sums. Most bands of most queries stay
// empty; they are neither written nor read.
//
// Owns its memory. Not synchronised; cannot fail but for std::bad_alloc in the constructor.
#ifndef ATTND_ENGINE_KDE_INDEX_BAND_SUMS_H_
#define ATTND_ENGINE_KDE_INDEX_BAND_SUMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/simd/weighted_sums.h"

namespace attnd::engine {

class BandSums {
 public:
  static constexpr std::int64_t kMostBands = 64;

  // Up to kMostBands bands.
  BandSums(std::int64_t queries, std::int64_t bands, std::int64_t width)
      : bands_(bands),
        width_(width),
        sums_(AlignedBuffer<double>::Uninitialized(queries * bands * width)),
        used_(static_cast<std::size_t>(queries)) {}

  std::int64_t width() const { return width_; }

  // To be added to; zeros at first.
  double* Of(std::int64_t query, std::int64_t band) {
    double* sums = Row(query, band);
    if (!Has(query, band)) std::fill_n(sums, width_, 0.0);
    used_[static_cast<std::size_t>(query)] |= std::uint64_t{1} << band;
    return sums;
  }

  // Null where nothing was added.
  const double* Find(std::int64_t query, std::int64_t band) const {
    return Has(query, band) ? sums_.data() + (query * bands_ + band) * width_ : nullptr;
  }

  // Multiplies all sums of a query.
  void Scale(std::int64_t query, double factor) {
    for (std::int64_t band = 0; band < bands_; ++band) {
      if (Has(query, band)) ScaleSums(factor, Row(query, band), width_);
    }
  }

 private:
  bool Has(std::int64_t query, std::int64_t band) const {
    return ((used_[static_cast<std::size_t>(query)] >> band) & 1U) != 0;
  }
  double* Row(std::int64_t query, std::int64_t band) {
    return sums_.data() + (query * bands_ + band) * width_;
  }

  const std::int64_t bands_;
  const std::int64_t width_;
  AlignedBuffer<double> sums_;       // [queries][bands][width]
  std::vector<std::uint64_t> used_;  // [queries]: bit b: band b is not empty
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_BAND_SUMS_H_

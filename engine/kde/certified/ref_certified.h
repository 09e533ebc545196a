// The reference of certified_row.h: the same answer in f64, step by step, with everything sorted
// and summed in full. Draws what the row draws, from the same f32 weights. Slow. Thread-safe.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_REF_CERTIFIED_H_
#define ATTND_ENGINE_KDE_CERTIFIED_REF_CERTIFIED_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kde/certified/certified_row.h"

namespace attnd::engine {

struct RefCertifiedAnswer {
  std::vector<double> output;  // [d_v]
  double log_normalizer = 0.0;
  LogInterval log_normalizers;
  double standard_error = 0.0;
  double exact_mass = 1.0;
  std::vector<std::int64_t> exact_keys;  // of exact blocks and heavy ones, ascending
  std::vector<std::int64_t> draws;
};

// Requires a key that is not masked and finite scores.
RefCertifiedAnswer RefCertifiedRow(const CertifiedRowShape& shape, const CertifiedOptions& options,
                                   std::span<const CertifiedBlock> blocks, const float* query,
                                   std::uint64_t seed);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_REF_CERTIFIED_H_

#include "engine/simd/leaf_selection.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/leaf_selection.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of 8 whatever the processor has; sums have two of them.
using F32x8 = hn::CappedTag<float, 8>;
using V = hn::Vec<F32x8>;
constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kBlock = 64;

constexpr float kMostVariance = 20.0F;
constexpr float kMostExponent = 80.0F;
constexpr float kMostLogMass = 40.0F;

struct Sum {
  V even;
  V odd;
};

HWY_INLINE Sum ZeroSum() { return {hn::Zero(F32x8()), hn::Zero(F32x8())}; }

HWY_INLINE void AddTo(Sum& sum, std::int64_t vector, V x) {
  V& lanes = vector % 2 == 0 ? sum.even : sum.odd;
  lanes = hn::Add(lanes, x);
}

HWY_INLINE float Total(const Sum& sum) {
  return hn::GetLane(hn::SumOfLanes(F32x8(), hn::Add(sum.even, sum.odd)));
}

struct Prediction {
  V square_error;
  V mass;
};

// n exp(q . mu + |q| R); e^80 where that is more or not a number.
HWY_INLINE V Upper(const LeafStats& leaves, const LeafQuery& query, V log_lower, std::int64_t c) {
  const F32x8 d;
  const V most = hn::Set(d, kMostExponent);
  const V reach = hn::MulAdd(hn::Set(d, query.length), hn::LoadU(d, leaves.radii + c), log_lower);
  return ExpUpTo87(d, hn::IfThenElse(hn::Le(reach, most), reach, most));
}

HWY_INLINE Prediction Predict(const LeafStats& leaves, const LeafQuery& query, V log_lower,
                              std::int64_t c) {
  const F32x8 d;
  const V most = hn::Set(d, kMostVariance);
  const V lower = ExpUpTo87(d, log_lower);
  const V s = hn::Mul(hn::Set(d, query.square), hn::LoadU(d, leaves.variances + c));
  const auto modelled = hn::Le(s, most);  // false for NaN
  const V half = hn::Mul(hn::Set(d, 0.5F), hn::IfThenElse(modelled, s, most));
  const V growth = ExpUpTo87(d, half);
  const V square = hn::Mul(growth, growth);
  const V mass = hn::Mul(lower, growth);
  const V spread =
      hn::Mul(hn::MulAdd(square, square, hn::Set(d, -1.0F)), hn::LoadU(d, leaves.noises + c));
  const V square_error = hn::Mul(hn::Mul(mass, mass), spread);
  if (HWY_LIKELY(hn::AllTrue(d, modelled))) return {square_error, mass};
  const V upper = Upper(leaves, query, log_lower, c);
  return {hn::IfThenElse(modelled, square_error, hn::Mul(upper, upper)),
          hn::IfThenElse(modelled, mass, upper)};
}

HWY_INLINE V LogLower(const LeafQuery& query, const float* log_masses, std::int64_t c) {
  const F32x8 d;
  return hn::Sub(hn::LoadU(d, log_masses + c), hn::Set(d, query.max));
}

float LogMassesImpl(const LeafStats& leaves, float* scores) {
  const F32x8 d;
  const V infinity = hn::Inf(d);
  V max = hn::Neg(infinity);
  auto wrong = hn::FirstN(d, 0);
  for (std::int64_t c = 0; c < leaves.columns; c += kLanes) {
    const V m = hn::Add(hn::LoadU(d, scores + c), hn::LoadU(d, leaves.log_counts + c));
    wrong = hn::Or(wrong, hn::Not(hn::Lt(m, infinity)));
    max = hn::Max(max, m);
    hn::StoreU(m, d, scores + c);
  }
  if (!hn::AllFalse(d, wrong)) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

float SumOfMassesImpl(const float* log_masses, std::int64_t columns, float max) {
  const F32x8 d;
  const V shift = hn::Set(d, max);
  const V most = hn::Set(d, kMostLogMass);
  Sum sum = ZeroSum();
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const V x = hn::Sub(hn::LoadU(d, log_masses + c), shift);
    AddTo(sum, c / kLanes, ExpUpTo87(d, hn::IfThenElse(hn::Le(x, most), x, most)));
  }
  return Total(sum);
}

void PredictLeavesImpl(const LeafStats& leaves, const LeafQuery& query, const float* log_masses,
                       float* square_errors, float* masses) {
  const F32x8 d;
  for (std::int64_t c = 0; c < leaves.columns; c += kLanes) {
    const Prediction leaf = Predict(leaves, query, LogLower(query, log_masses, c), c);
    hn::StoreU(leaf.square_error, d, square_errors + c);
    hn::StoreU(leaf.mass, d, masses + c);
  }
}

// `predict`: (log_lower, c) to the Prediction of leaves c to c + 7.
template <typename Predictor>
HWY_INLINE LeafTotals Select(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                             const Predictor& predict, float* log_masses, std::uint64_t* selected) {
  const F32x8 d;
  const V threshold = hn::Set(d, SquareThreshold(query.threshold));
  const V ratio = hn::Set(d, query.ratio);
  const V zero = hn::Zero(d);
  alignas(64) float own_leaf[kBlock] = {};  // not 0: the query's own, in its block
  const std::int64_t own_block = own < 0 ? -1 : own / kBlock;
  if (own >= 0) own_leaf[own % kBlock] = 1.0F;
  Sum mass = ZeroSum();
  Sum slope = ZeroSum();
  Sum square_error = ZeroSum();
  Sum lower = ZeroSum();
  Sum upper = ZeroSum();
  for (std::int64_t block = 0; block * kBlock < leaves.columns; ++block) {
    std::uint64_t bits = 0;
    const std::int64_t vectors = std::min(leaves.columns - block * kBlock, kBlock) / kLanes;
    for (std::int64_t v = 0; v < vectors; ++v) {
      const std::int64_t c = block * kBlock + v * kLanes;
      const V log_lower = LogLower(query, log_masses, c);
      const Prediction leaf = predict(log_lower, c);
      auto read = hn::Not(hn::And(hn::Le(leaf.square_error, threshold),
                                  hn::Le(log_lower, hn::Set(d, kMostLogMass))));
      if (block == own_block) {
        read = hn::Or(read, hn::Gt(hn::Load(d, own_leaf + v * kLanes), zero));
      }
      const auto none = hn::Not(hn::Gt(hn::LoadU(d, leaves.noises + c), zero));
      read = hn::AndNot(none, read);
      const auto apart = hn::Or(read, none);  // not for the sums
      std::uint8_t mask[8] = {};
      hn::StoreMaskBits(d, read, mask);
      bits |= static_cast<std::uint64_t>(mask[0]) << (v * kLanes);
      const V weight = hn::IfThenZeroElse(
          apart, hn::Mul(leaf.mass, hn::Mul(ratio, hn::LoadU(d, leaves.ratios + c))));
      hn::StoreU(weight, d, log_masses + c);
      AddTo(mass, v, weight);
      AddTo(slope, v, hn::Mul(weight, hn::LoadU(d, leaves.slopes + c)));
      AddTo(square_error, v, hn::IfThenZeroElse(apart, leaf.square_error));
      if (!query.bounds) continue;
      AddTo(lower, v, hn::IfThenZeroElse(apart, ExpUpTo87(d, log_lower)));
      AddTo(upper, v, hn::IfThenZeroElse(apart, Upper(leaves, query, log_lower, c)));
    }
    selected[block] = bits;
  }
  return {Total(mass), Total(slope), Total(square_error), Total(lower), Total(upper)};
}

LeafTotals SelectLeavesImpl(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                            float* log_masses, std::uint64_t* selected) {
  const auto predict = [&](V log_lower, std::int64_t c)
                           HWY_ATTR { return Predict(leaves, query, log_lower, c); };
  return Select(leaves, query, own, predict, log_masses, selected);
}

LeafTotals SelectPredictedImpl(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                               const float* square_errors, const float* masses, float* log_masses,
                               std::uint64_t* selected) {
  const auto predict = [&](V /*log_lower*/, std::int64_t c) HWY_ATTR {
    const F32x8 d;
    return Prediction{hn::LoadU(d, square_errors + c), hn::LoadU(d, masses + c)};
  };
  return Select(leaves, query, own, predict, log_masses, selected);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(LogMassesImpl);
HWY_EXPORT(SumOfMassesImpl);
HWY_EXPORT(PredictLeavesImpl);
HWY_EXPORT(SelectLeavesImpl);
HWY_EXPORT(SelectPredictedImpl);

float LogMasses(const LeafStats& leaves, float* scores) {
  return HWY_DYNAMIC_DISPATCH(LogMassesImpl)(leaves, scores);
}

float SumOfMasses(const float* log_masses, std::int64_t columns, float max) {
  return HWY_DYNAMIC_DISPATCH(SumOfMassesImpl)(log_masses, columns, max);
}

void PredictLeaves(const LeafStats& leaves, const LeafQuery& query, const float* log_masses,
                   float* errors, float* masses) {
  HWY_DYNAMIC_DISPATCH(PredictLeavesImpl)(leaves, query, log_masses, errors, masses);
}

LeafTotals SelectLeaves(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                        float* log_masses, std::uint64_t* selected) {
  return HWY_DYNAMIC_DISPATCH(SelectLeavesImpl)(leaves, query, own, log_masses, selected);
}

LeafTotals SelectPredicted(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                           const float* square_errors, const float* masses, float* log_masses,
                           std::uint64_t* selected) {
  return HWY_DYNAMIC_DISPATCH(SelectPredictedImpl)(leaves, query, own, square_errors, masses,
                                                   log_masses, selected);
}

}  // namespace attnd::engine
#endif

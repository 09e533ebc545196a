#include "engine/kde/certified/ref_certified.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "engine/block.h"
#include "engine/random.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

struct Key {
  std::int64_t key = 0;
  double score = 0.0;              // true
  float scanned = 0.0F;            // s^
  double eta = 0.0;                // bound of their difference
  float weight = 0.0F;             // w^
  std::vector<double> value = {};  // [d_v]
  std::vector<double> control = {};
};

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

double TrueScore(const CertifiedRowShape& shape, const CertifiedBlock& block, const float* query,
                 std::int64_t j) {
  double score = 0;
  for (std::int64_t i = 0; i < shape.key_dim; ++i) {
    score += static_cast<double>(query[i]) *
             static_cast<double>(block.block.keys_t[i * kBlockTokens + j]);
  }
  return score;
}

// The weight times the squared size of the value.
double Square(const Key& key, std::span<const CertifiedBlock> blocks) {
  const float* sizes = blocks[Index(key.key / kBlockTokens)].controls.steps;
  const double size = sizes == nullptr ? 1 : static_cast<double>(sizes[key.key % kBlockTokens]);
  return static_cast<double>(key.weight) * size * size;
}

// Keys that are evaluated exactly, and the residual.
struct Split {
  std::vector<Key> exact;
  std::vector<Key> residual;
};

Split Scan(const CertifiedRowShape& shape, const CertifiedOptions& options,
           std::span<const CertifiedBlock> blocks, const float* query) {
  CodedQuery coded;
  coded.Set(query, shape.key_dim);
  Split split;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const CertifiedBlock& block = blocks[b];
    const bool codes = block.codes.codes != nullptr &&
                       coded.Bound(block.codes).Of(block.codes.max_error) <= options.max_eta;
    std::array<float, kBlockTokens> scores = {};
    if (codes) coded.RefScores(block.codes, scores.data());
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      if ((block.block.valid >> j & 1U) == 0) continue;
      Key key{.key = static_cast<std::int64_t>(b) * kBlockTokens + j,
              .score = TrueScore(shape, block, query, j),
              .scanned = scores[Index(j)]};
      const float* value = block.block.values + j * shape.padded_value_dim;
      key.value.assign(value, value + shape.value_dim);
      if (codes) {
        key.eta = static_cast<double>(coded.Bound(block.codes).Of(block.codes.errors[j]));
      }
      (codes ? split.residual : split.exact).push_back(std::move(key));
    }
  }
  return split;
}

// Returns the reference of the weights: the row's, in f32, because draws depend on weights to the
// last bit.
float TakeHeavy(const CertifiedOptions& options, Split& split) {
  std::vector<Key>& residual = split.residual;
  std::stable_sort(residual.begin(), residual.end(),
                   [](const Key& a, const Key& b) { return a.scanned > b.scanned; });
  const float best =
      residual.empty() ? -std::numeric_limits<float>::infinity() : residual[0].scanned;
  std::int64_t heavy = 0;
  while (heavy < std::min<std::int64_t>(options.most_heavy_keys, std::ssize(residual)) &&
         (heavy < options.heavy_keys ||
          residual[Index(heavy)].scanned >= best - options.heavy_margin)) {
    split.exact.push_back(residual[Index(heavy++)]);
  }
  residual.erase(residual.begin(), residual.begin() + heavy);
  std::sort(residual.begin(), residual.end(),
            [](const Key& a, const Key& b) { return a.key < b.key; });
  float reference = best;
  for (const Key& key : split.exact) reference = std::max(reference, static_cast<float>(key.score));
  return reference;
}

void TakeLarge(const CertifiedOptions& options, std::span<const CertifiedBlock> blocks,
               float reference, Split& split) {
  double squares = 0;
  for (Key& key : split.residual) {
    const float shifted = key.scanned - reference;
    Exp(&shifted, &key.weight, 1);
    squares += Square(key, blocks);
  }
  std::vector<Key> rest;
  std::int64_t large = 0;
  for (Key& key : split.residual) {
    if (options.pairs > 0 && large < options.most_heavy_keys &&
        Square(key, blocks) > squares / static_cast<double>(2 * options.pairs)) {
      ++large;
      split.exact.push_back(std::move(key));
    } else {
      rest.push_back(std::move(key));
    }
  }
  split.residual = std::move(rest);
}

void SetControls(const CertifiedRowShape& shape, std::span<const CertifiedBlock> blocks,
                 std::vector<Key>& residual) {
  double total = 0;
  std::vector<double> block_weights(blocks.size(), 0.0);
  std::vector<float> weights(blocks.size() * kBlockTokens, 0.0F);
  for (const Key& key : residual) {
    total += static_cast<double>(key.weight);
    block_weights[Index(key.key / kBlockTokens)] += static_cast<double>(key.weight);
    weights[Index(key.key)] = key.weight;
  }
  for (Key& key : residual) {
    const std::size_t block = Index(key.key / kBlockTokens);
    ValueCodes controls = blocks[block].controls;
    const double least = kLeastShare * total / static_cast<double>(blocks.size());
    if (block_weights[block] < least) controls.codes = nullptr;
    std::vector<float> control(Index(shape.padded_value_dim));
    if (key.weight > 0) {
      WeightedCodes(controls, weights.data() + block * kBlockTokens)
          .Control(key.key % kBlockTokens, shape.padded_value_dim, control.data());
    }
    key.control.assign(control.begin(), control.begin() + shape.value_dim);
  }
}

// The key at a place within the sum of all weights.
const Key& KeyAt(const std::vector<Key>& residual, double place) {
  double before = 0;
  const Key* last = nullptr;
  for (const Key& key : residual) {
    if (key.weight == 0.0F) continue;
    last = &key;
    before += static_cast<double>(key.weight);
    if (before > place) break;
  }
  return *last;
}

// Adds the pairs to the moments and to sum [d_v].
void Sample(const std::vector<Key>& residual, std::int64_t pairs, double total, std::uint64_t seed,
            ErrorMoments& moments, std::vector<double>& sum, std::vector<std::int64_t>& draws) {
  const double unit = total / static_cast<double>(2 * pairs);
  const auto ratio = [&](const Key& key) {
    return std::exp(key.score - moments.reference) / static_cast<double>(key.weight);
  };
  moments.pairs = pairs;
  moments.residual = 0;
  moments.value_ratio.assign(sum.size(), 0.0);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const auto i = static_cast<std::uint64_t>(2 * pair);
    const double u = ToUniform(RandomAt(seed, i));
    const double v = ToUniform(RandomAt(seed, i + 1));
    const Key& k = KeyAt(residual, (static_cast<double>(pair) + std::min(u, v)) * 2 * unit);
    const Key& l = KeyAt(residual, (static_cast<double>(pair) + std::max(u, v)) * 2 * unit);
    draws.insert(draws.end(), {k.key, l.key});
    const double b = ratio(k) - ratio(l);
    moments.residual += unit * (ratio(k) + ratio(l));
    moments.ratio_square += unit * unit * b * b;
    for (std::size_t c = 0; c < sum.size(); ++c) {
      const double x = ratio(k) * k.value[c] - k.control[c];
      const double y = ratio(l) * l.value[c] - l.control[c];
      sum[c] += unit * (x + y);
      moments.value_square += unit * unit * (x - y) * (x - y);
      moments.value_ratio[c] += unit * unit * (x - y) * b;
    }
  }
}

}  // namespace

RefCertifiedAnswer RefCertifiedRow(const CertifiedRowShape& shape, const CertifiedOptions& options,
                                   std::span<const CertifiedBlock> blocks, const float* query,
                                   std::uint64_t seed) {
  Split split = Scan(shape, options, blocks, query);
  const float reference = TakeHeavy(options, split);
  TakeLarge(options, blocks, reference, split);
  SetControls(shape, blocks, split.residual);

  const std::size_t columns = Index(shape.value_dim);
  ErrorMoments moments{.reference = static_cast<double>(reference)};
  std::vector<double> sum(columns, 0.0);
  RefCertifiedAnswer answer;
  for (const Key& key : split.exact) {
    const double weight = std::exp(key.score - moments.reference);
    moments.exact += weight;
    for (std::size_t c = 0; c < columns; ++c) sum[c] += weight * key.value[c];
    answer.exact_keys.push_back(key.key);
  }
  std::sort(answer.exact_keys.begin(), answer.exact_keys.end());
  double max_eta = 0;
  double total = 0;
  for (const Key& key : split.residual) {
    const auto weight = static_cast<double>(key.weight);
    total += weight;
    max_eta = std::max(max_eta, key.eta);
    moments.residual_low += weight * std::exp(-key.eta);
    moments.residual_high += weight * std::exp(key.eta);
    for (std::size_t c = 0; c < columns; ++c) sum[c] += weight * key.control[c];
  }
  moments.residual = total;
  if (options.pairs > 0 && total > 0) {
    Sample(split.residual, options.pairs, total, seed, moments, sum, answer.draws);
    moments.range =
        total / static_cast<double>(2 * options.pairs) * (std::exp(max_eta) - std::exp(-max_eta));
  }
  std::vector<float> output;
  for (std::size_t c = 0; c < columns; ++c) {
    answer.output.push_back(sum[c] / moments.total());
    output.push_back(static_cast<float>(answer.output.back()));
  }
  answer.log_normalizer = moments.reference + std::log(moments.total());
  answer.log_normalizers = LogNormalizerInterval(moments);
  answer.standard_error = StandardError(moments, output.data(), shape.value_dim);
  answer.exact_mass = moments.exact / moments.total();
  return answer;
}

}  // namespace attnd::engine

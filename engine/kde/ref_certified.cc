#include "engine/kde/ref_certified.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

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

}  // namespace

RefCertifiedAnswer RefCertifiedRow(const CertifiedRowShape& shape, const CertifiedOptions& options,
                                   std::span<const CertifiedBlock> blocks, const float* query,
                                   std::uint64_t seed) {
  const std::size_t columns = Index(shape.value_dim);
  CodedQuery coded;
  coded.Set(query, shape.key_dim);
  std::vector<Key> exact;
  std::vector<Key> scanned;
  double max_eta = 0;
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
      key.value.assign(value, value + columns);
      if (codes) {
        key.eta = static_cast<double>(coded.Bound(block.codes).Of(block.codes.errors[j]));
      }
      (codes ? scanned : exact).push_back(std::move(key));
    }
  }
  std::stable_sort(scanned.begin(), scanned.end(),
                   [](const Key& a, const Key& b) { return a.scanned > b.scanned; });
  const float best = scanned.empty() ? -INFINITY : scanned[0].scanned;
  std::int64_t heavy = 0;
  while (heavy < std::min<std::int64_t>(options.most_heavy_keys, std::ssize(scanned)) &&
         (heavy < options.heavy_keys ||
          scanned[Index(heavy)].scanned >= best - options.heavy_margin)) {
    exact.push_back(scanned[Index(heavy++)]);
  }
  scanned.erase(scanned.begin(), scanned.begin() + heavy);
  std::sort(scanned.begin(), scanned.end(),
            [](const Key& a, const Key& b) { return a.key < b.key; });
  // The reference is the row's, in f32: draws depend on weights to the last bit.
  float reference = best;
  for (const Key& key : exact) reference = std::max(reference, static_cast<float>(key.score));

  ErrorMoments moments{.reference = static_cast<double>(reference)};
  std::vector<double> sum(columns, 0.0);
  RefCertifiedAnswer answer;
  double squares = 0;
  for (Key& key : scanned) {
    const float shifted = key.scanned - reference;
    Exp(&shifted, &key.weight, 1);
    squares += Square(key, blocks);
  }
  std::vector<Key> rest;
  std::int64_t large = 0;
  for (Key& key : scanned) {
    if (options.pairs > 0 && large < options.most_heavy_keys &&
        Square(key, blocks) > squares / static_cast<double>(2 * options.pairs)) {
      ++large;
      exact.push_back(std::move(key));
    } else {
      rest.push_back(std::move(key));
    }
  }
  scanned = std::move(rest);
  for (const Key& key : exact) {
    const double weight = std::exp(key.score - moments.reference);
    moments.exact += weight;
    for (std::size_t c = 0; c < columns; ++c) sum[c] += weight * key.value[c];
    answer.exact_keys.push_back(key.key);
  }
  std::sort(answer.exact_keys.begin(), answer.exact_keys.end());
  double total = 0;
  std::vector<double> block_weights(blocks.size(), 0.0);
  std::vector<float> weights(blocks.size() * kBlockTokens, 0.0F);
  for (const Key& key : scanned) {
    const auto weight = static_cast<double>(key.weight);
    total += weight;
    block_weights[Index(key.key / kBlockTokens)] += weight;
    weights[Index(key.key)] = key.weight;
    max_eta = std::max(max_eta, key.eta);
    moments.residual_low += weight * std::exp(-key.eta);
    moments.residual_high += weight * std::exp(key.eta);
  }
  for (Key& key : scanned) {
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
    for (std::size_t c = 0; c < columns; ++c) {
      sum[c] += static_cast<double>(key.weight) * key.control[c];
    }
  }
  moments.residual = total;
  if (options.pairs > 0 && total > 0) {
    const auto draws = static_cast<double>(2 * options.pairs);
    const double unit = total / draws;
    const auto draw = [&](double at) -> const Key& {
      double before = 0;
      const Key* last = nullptr;
      for (const Key& key : scanned) {
        if (key.weight == 0.0F) continue;
        last = &key;
        before += static_cast<double>(key.weight);
        if (before > at) break;
      }
      return *last;
    };
    const auto ratio = [&](const Key& key) {
      return std::exp(key.score - moments.reference) / static_cast<double>(key.weight);
    };
    moments.pairs = options.pairs;
    moments.residual = 0;
    moments.value_ratio.assign(columns, 0.0);
    for (std::int64_t pair = 0; pair < options.pairs; ++pair) {
      const auto i = static_cast<std::uint64_t>(2 * pair);
      const double u = ToUniform(RandomAt(seed, i));
      const double v = ToUniform(RandomAt(seed, i + 1));
      const double stratum = 2 * unit;
      const Key& k = draw((static_cast<double>(pair) + std::min(u, v)) * stratum);
      const Key& l = draw((static_cast<double>(pair) + std::max(u, v)) * stratum);
      answer.draws.insert(answer.draws.end(), {k.key, l.key});
      const double b = ratio(k) - ratio(l);
      moments.residual += unit * (ratio(k) + ratio(l));
      moments.ratio_square += unit * unit * b * b;
      for (std::size_t c = 0; c < columns; ++c) {
        const double x = ratio(k) * k.value[c] - k.control[c];
        const double y = ratio(l) * l.value[c] - l.control[c];
        sum[c] += unit * (x + y);
        moments.value_square += unit * unit * (x - y) * (x - y);
        moments.value_ratio[c] += unit * unit * (x - y) * b;
      }
    }
    moments.range = unit * (std::exp(max_eta) - std::exp(-max_eta));
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

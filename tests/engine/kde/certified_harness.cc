#include "tests/engine/kde/certified_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "engine/gemm.h"
#include "engine/simd/transpose.h"
#include "engine/tensor.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::certified_test {

Tokens RandomTokens(std::int64_t count, std::int64_t key_dim, std::int64_t value_dim,
                    std::uint32_t seed, float key_deviation) {
  return {.count = count,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .keys = RandomValues(count * key_dim, seed, key_deviation),
          .values = RandomValues(count * value_dim, seed + 1),
          .mask = std::vector<std::uint8_t>(Size(count), 1)};
}

CodedContext::CodedContext(const Tokens& tokens, Controls controls, bool centred)
    : shape{tokens.key_dim, tokens.value_dim, RoundUp(tokens.value_dim, kGemmColumnMultiple)},
      keys_(tokens.key_dim, RoundUp(tokens.count, kBlockTokens) / kBlockTokens),
      values_(shape.padded_value_dim, RoundUp(tokens.count, kBlockTokens) / kBlockTokens) {
  const std::int64_t count = RoundUp(tokens.count, kBlockTokens) / kBlockTokens;
  const std::int64_t columns = shape.padded_value_dim;
  const std::int64_t elements = kBlockTokens * (shape.key_dim + columns);
  memory_ = AlignedBuffer<float>(count * elements);
  mean_keys_ = AlignedBuffer<float>(count * shape.key_dim);
  mean_values_ = AlignedBuffer<float>(count * columns);
  std::vector<double> mean(Size(shape.value_dim), 0.0);
  double unmasked = 0;
  for (std::int64_t b = 0; b < count; ++b) {
    float* keys_t = memory_.data() + b * elements;
    float* values = keys_t + kBlockTokens * shape.key_dim;
    const std::int64_t rows = std::min(kBlockTokens, tokens.count - b * kBlockTokens);
    const BlockView<float> block = {keys_t, values, ValidRows(tokens.mask, b * kBlockTokens, rows)};
    TransposeKeys(tokens.keys.data() + b * kBlockTokens * shape.key_dim, shape.key_dim, rows,
                  shape.key_dim, keys_t);
    const auto valid = static_cast<float>(std::max(std::popcount(block.valid), 1));
    float* mean_key = mean_keys_.data() + b * shape.key_dim;
    float* mean_value = mean_values_.data() + b * columns;
    for (std::int64_t j = 0; j < rows; ++j) {
      const std::int64_t token = b * kBlockTokens + j;
      std::copy_n(tokens.values.data() + token * shape.value_dim, shape.value_dim,
                  values + j * columns);
      if (tokens.mask[Size(token)] == 0) continue;
      unmasked += 1;
      for (std::int64_t i = 0; i < shape.key_dim; ++i) {
        mean_key[i] += tokens.keys[Size(token * shape.key_dim + i)] / valid;
      }
      for (std::int64_t c = 0; c < shape.value_dim; ++c) {
        const float value = tokens.values[Size(token * shape.value_dim + c)];
        mean_value[c] += value / valid;
        mean[Size(c)] += static_cast<double>(value);
      }
    }
    keys_.Encode(b, block, centred ? mean_key : nullptr);
    values_.Encode(b, block, mean_value);
    blocks.push_back({.block = block, .codes = keys_.block(b), .controls = values_.block(b)});
    if (controls != Controls::kCodes) blocks.back().controls.codes = nullptr;
    if (controls == Controls::kNone) blocks.back().controls.centre = nullptr;
  }
  for (double& x : mean) x /= std::max(unmasked, 1.0);
  double square = 0;
  for (std::int64_t token = 0; token < tokens.count; ++token) {
    if (tokens.mask[Size(token)] == 0) continue;
    for (std::int64_t c = 0; c < shape.value_dim; ++c) {
      const double rest =
          static_cast<double>(tokens.values[Size(token * shape.value_dim + c)]) - mean[Size(c)];
      square += rest * rest;
    }
  }
  spread = std::sqrt(square / std::max(unmasked, 1.0));
}

Answer Attend(const CodedContext& context, const CertifiedOptions& options, const float* query,
              std::uint64_t seed) {
  CertifiedRow row;
  row.Reset(context.shape, options, context.blocks, query, seed);
  while (!row.Run()) {
  }
  return {std::vector<float>(row.output(), row.output() + context.shape.value_dim), row.answer()};
}

oracle::Answers Truth(const Tokens& tokens, const std::vector<float>& queries) {
  const oracle::Context context = {.key_dim = tokens.key_dim,
                                   .value_dim = tokens.value_dim,
                                   .tokens = tokens.count,
                                   .keys = tokens.keys.data(),
                                   .values = tokens.values.data(),
                                   .mask = tokens.mask.data()};
  const std::int64_t count = std::ssize(queries) / tokens.key_dim;
  return oracle::Softmax(context, {queries.data(), oracle::AllVisible(count, tokens.count)});
}

double ErrorOfRow(const Answer& answer, const oracle::Answers& truth, std::int64_t row) {
  const std::size_t columns = answer.output.size();
  double square = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    const double difference =
        static_cast<double>(answer.output[c]) - truth.outputs[Size(row) * columns + c];
    square += difference * difference;
  }
  return std::sqrt(square);
}

double Percentile(std::vector<double> sample, double share) {
  std::sort(sample.begin(), sample.end());
  return sample[static_cast<std::size_t>(share * static_cast<double>(sample.size() - 1))];
}

}  // namespace attnd::engine::certified_test

#include "tests/bench/kde_attempt.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/exact/exact_engine.h"
#include "tests/bench/bars.h"
#include "tests/bench/layer_run.h"
#include "tests/bench/machine.h"
#include "tests/bench/spectrum.h"

namespace attnd::bench {

void Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

Head HeadOf(const data::TensorSet& set, std::size_t layer, std::int64_t head, std::int64_t count,
            const std::string& name) {
  Head cut = {name, count, set.shape.key_dim, set.shape.scale, {}, {}, {}};
  const auto take = [&](const std::vector<float>& from, std::int64_t heads, std::int64_t h,
                        std::vector<float>& to) {
    for (std::int64_t t = 0; t < count; ++t) {
      const float* row = from.data() + (t * heads + h) * cut.dim;
      to.insert(to.end(), row, row + cut.dim);
    }
  };
  take(set.layers[layer].queries, set.shape.query_heads, head, cut.queries);
  take(set.layers[layer].keys, set.shape.kv_heads, head / set.shape.group_size(), cut.keys);
  take(set.layers[layer].values, set.shape.kv_heads, head / set.shape.group_size(), cut.values);
  return cut;
}

Exact Attend(const Head& head) {
  const engine::LayerShape shape = {1, 1, head.dim, head.dim, head.scale};
  auto made = engine::MakeExactEngine(shape, {});
  if (!made.ok()) Fail(made.status());
  engine::Scratch scratch;
  const auto state = Append(**made, head.keys, head.values, scratch);
  Attender attender(**made);
  std::vector<double> seconds;
  for (int run = 0; run < 3; ++run) {
    const double start = ThreadSeconds();
    attender.Attend(*state, head.queries, scratch);
    seconds.push_back(ThreadSeconds() - start);
  }
  return {attender.outputs(), Median(seconds)};
}

AttemptErrors ErrorsOf(const Head& head, const std::vector<float>& answers,
                       const std::vector<float>& truth, double softmax_norm) {
  std::vector<float> off(truth.size());
  for (std::size_t i = 0; i < off.size(); ++i) off[i] = answers[i] - truth[i];
  AttemptErrors errors;
  const double op = OperatorNorm(off, head.dim);
  errors.op = op / OperatorNorm(truth, head.dim);
  errors.eq1 = op / (softmax_norm * OperatorNorm(head.values, head.dim));
  errors.fro = FrobeniusNorm(off) / FrobeniusNorm(truth);
  std::vector<double> rows;
  for (std::int64_t i = 0; i < head.count; ++i) {
    const float* a = off.data() + i * head.dim;
    const float* b = truth.data() + i * head.dim;
    rows.push_back(std::sqrt(engine::DotF64(a, a, head.dim) / engine::DotF64(b, b, head.dim)));
  }
  std::sort(rows.begin(), rows.end());
  errors.row99 = rows[rows.size() * 99 / 100];
  return errors;
}

namespace {

template <typename Make>
Attempt Try(const Head& head, const std::vector<float>& truth, double softmax_norm, int seeds,
            const Make& make) {
  Attempt attempt;
  std::vector<float> outputs(truth.size());
  std::vector<double> seconds;
  engine::Scratch scratch;
  for (int seed = 1; seed <= seeds; ++seed) {
    const double start = ThreadSeconds();
    auto made = make(static_cast<std::uint64_t>(seed),
                     engine::AttentionOutputs{{outputs.data(), head.dim}, nullptr});
    if (!made.ok()) Fail(made.status());
    while (!(*made)->Step(scratch)) {
    }
    seconds.push_back(ThreadSeconds() - start);
    const AttemptErrors e = ErrorsOf(head, outputs, truth, softmax_norm);
    attempt.errors.op += e.op / seeds;
    attempt.errors.fro += e.fro / seeds;
    attempt.errors.row99 += e.row99 / seeds;
    attempt.errors.eq1 += e.eq1 / seeds;
    if constexpr (requires { (*made)->evaluations(); }) {
      attempt.keys = (*made)->evaluations() / head.count;
    }
  }
  attempt.seconds = Median(seconds);
  return attempt;
}

}  // namespace

Attempt TryColumns(const Head& head, const std::vector<float>& truth, double softmax_norm,
                   engine::ColumnSamplingConfig config, int seeds) {
  return Try(head, truth, softmax_norm, seeds,
             [&](std::uint64_t seed, const engine::AttentionOutputs& outputs) {
               config.seed = seed;
               return engine::ColumnSampling::Create(head.inputs(), config, outputs);
             });
}

Attempt TryPractical(const Head& head, const std::vector<float>& truth, double softmax_norm,
                     engine::KdeformerConfig config, int seeds) {
  return Try(head, truth, softmax_norm, seeds,
             [&](std::uint64_t seed, const engine::AttentionOutputs& outputs) {
               config.seed = seed;
               return engine::Kdeformer::Create(head.inputs(), config, outputs);
             });
}

}  // namespace attnd::bench

// Heads of the study of the kde engine, exact attention over them, and the errors and times of what
// approximates it. On the calling thread; what the engine refuses ends the program.
#ifndef ATTND_TESTS_BENCH_KDE_ATTEMPT_H_
#define ATTND_TESTS_BENCH_KDE_ATTEMPT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/kde/paper/column_sampling.h"
#include "engine/kde/paper/kdeformer.h"
#include "engine/kde/rows.h"
#include "tests/data/real_data.h"

namespace attnd::bench {

[[noreturn]] void Fail(const absl::Status& status);

// One head that owns its rows.
struct Head {
  std::string name;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  float scale = 1;
  std::vector<float> queries;
  std::vector<float> keys;
  std::vector<float> values;

  engine::AttentionInputs inputs() const {
    return {engine::DenseRows(queries.data(), count, dim),
            engine::DenseRows(keys.data(), count, dim),
            engine::DenseRows(values.data(), count, dim), scale};
  }
};

// The first `count` tokens of a head.
Head HeadOf(const data::TensorSet& set, std::size_t layer, std::int64_t head, std::int64_t count,
            const std::string& name);

// Softmax attention by the exact engine, and the processor time of its queries.
struct Exact {
  std::vector<float> outputs;
  double seconds = 0;
};
Exact Attend(const Head& head);

// answers - truth in the units of the study.
struct AttemptErrors {
  double op = 0;     // ||.||_op / ||truth||_op
  double fro = 0;    // ||.||_F / ||truth||_F
  double row99 = 0;  // 99th percentile of ||row|| / ||row of truth||
  double eq1 = 0;    // ||.||_op / (||D^-1 A||_op ||V||_op)
};

AttemptErrors ErrorsOf(const Head& head, const std::vector<float>& answers,
                       const std::vector<float>& truth, double softmax_norm);

// Means over seeds.
struct Attempt {
  AttemptErrors errors;
  double seconds = 0;     // median
  std::int64_t keys = 0;  // evaluated per query, of the practical form
};

Attempt TryColumns(const Head& head, const std::vector<float>& truth, double softmax_norm,
                   engine::ColumnSamplingConfig config, int seeds);
Attempt TryPractical(const Head& head, const std::vector<float>& truth, double softmax_norm,
                     engine::KdeformerConfig config, int seeds);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_KDE_ATTEMPT_H_

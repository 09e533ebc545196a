// Layers whose sums decay and are corrected, with their gates, as tests build and ask them.
#ifndef ATTND_TESTS_ENGINE_GATED_HARNESS_H_
#define ATTND_TESTS_ENGINE_GATED_HARNESS_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/layer_stream.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_harness.h"
#include "tests/oracle/recurrence.h"

namespace attnd::engine::gated_test {

using linear_test::Answers;
using linear_test::RowOf;

// A rule of the literature on a layer of some shape.
struct Case {
  std::string name;
  LayerShape shape;
  LinearConfig config;
};
void PrintTo(const Case& c, std::ostream* os);

// One of every family, and the corners between them.
std::vector<Case> AllCases();
Case CaseNamed(const std::string& name);

// Tokens with the gates of a case; keys of about unit length, as delta rules need them.
struct Stream {
  Stream(const Case& c, std::int64_t tokens, std::uint32_t seed);

  void Mask(std::int64_t token);
  TokenBatch batch() const;
  oracle::Context context(std::int64_t position) const;
  oracle::Recurrence recurrence() const;

  LinearConfig config;
  LayerShape shape;
  std::int64_t tokens;
  std::int64_t feature_dim;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> log_decays;
  std::vector<float> rates;
  std::vector<std::uint8_t> mask;
};

std::unique_ptr<const Engine> Make(const Case& c);

// The state after tokens [base, position), appended in pieces of these sizes, repeated.
std::shared_ptr<const LayerState> Append(const Engine& engine, const Stream& stream,
                                         const std::shared_ptr<const LayerState>& base,
                                         std::int64_t position,
                                         const std::vector<std::int64_t>& pieces = {1 << 20});
std::shared_ptr<const LayerState> At(const Engine& engine, const Stream& stream,
                                     std::int64_t position,
                                     const std::vector<std::int64_t>& pieces = {1 << 20});

// `positions`: of the queries, where the map asks for them.
Answers Attend(const Engine& engine, const LayerState& state, const float* queries,
               std::int64_t count);
// The queries of the `count` newest tokens, which stand in the open block.
Answers Step(const Engine& engine, const LayerState& state, const float* queries,
             std::int64_t count);

}  // namespace attnd::engine::gated_test

#endif  // ATTND_TESTS_ENGINE_GATED_HARNESS_H_

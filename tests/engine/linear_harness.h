// Drives a linear engine as a layer would, from tokens that are all known beforehand: snapshots at
// any position, sealed in any grouping, and answers from them.
#ifndef ATTND_TESTS_ENGINE_LINEAR_HARNESS_H_
#define ATTND_TESTS_ENGINE_LINEAR_HARNESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/relative_error.h"

namespace attnd::engine::linear_test {

using oracle::RelativeError;

std::vector<float> NormalNumbers(std::int64_t count, std::uint32_t seed, float scale = 1.0F);

// Tokens and queries of one layer. Rows of masked tokens are zeros, as they are stored.
struct Stream {
  LayerShape shape;
  std::int64_t tokens = 0;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<std::uint8_t> mask;  // 0: masked

  void Mask(std::int64_t token);
  oracle::Context context(std::int64_t position) const;
};

Stream MakeStream(const LayerShape& shape, std::int64_t tokens, std::uint32_t seed);

// Tokens that are all given, of a layer whose rows are one number.
Stream TokensOf(const LayerShape& shape, const std::vector<float>& keys,
                const std::vector<float>& values);
std::vector<float> Repeat(float value, std::int64_t count);

// The complete blocks of a stream, as Seal takes them.
std::vector<Block> BlocksOf(const Stream& stream);

// All keys times `factor`.
void ScaleKeys(float factor, Stream* stream);

LinearConfig Config(const std::string& map, float epsilon = 0.0F);
std::unique_ptr<const Engine> MakeLinear(const LayerShape& shape, const LinearConfig& config);
oracle::FeatureMap OracleMap(const std::string& name);

// A layer's state at one position.
struct Snapshot {
  std::shared_ptr<SealedState> sealed;
  std::int64_t sealed_tokens = 0;
  std::unique_ptr<Tail> tail;
  std::int64_t rows = 0;
  RowMask valid = 0;

  TailView view() const { return {tail.get(), rows, valid}; }
};

// How a snapshot comes to be. `spans`: blocks per Seal call, repeated; features of blocks are taken
// from a tail or left to Seal; rows of the tail after the position are NaN where `poison_later`.
struct Cutting {
  std::vector<std::int64_t> spans = {1 << 20};
  bool features_from_tail = false;
  bool poison_later = true;
};

Snapshot At(const Engine& engine, const Stream& stream, std::int64_t position,
            const Cutting& cutting = {});

struct Answers {
  std::vector<float> outputs;
  std::vector<float> numerators;
  std::vector<float> denominators;
  std::vector<std::int32_t> exponents;  // of both
  std::vector<std::uint8_t> flags;

  bool operator==(const Answers& other) const;  // as bits
};

// One query's part.
Answers RowOf(const Answers& answers, const LayerShape& shape, std::int64_t query);

// What the engine answers a group, every array of it.
Answers AnswersOf(const Engine& engine, const QueryGroup& group);

// All `count` queries see the snapshot's tokens; causal: query i sees first_cut + i tail rows.
Answers Attend(const Engine& engine, const Snapshot& snapshot, const float* queries,
               std::int64_t count, const std::int64_t* positions = nullptr);
Answers AttendCausally(const Engine& engine, const Snapshot& snapshot, const float* queries,
                       std::int64_t count, std::int64_t first_cut);

}  // namespace attnd::engine::linear_test

#endif  // ATTND_TESTS_ENGINE_LINEAR_HARNESS_H_

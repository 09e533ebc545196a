// Drives an exact engine as a layer would, from tokens that are all known beforehand: snapshots at
// any position, sealed in any spans, and answers from them.
#ifndef ATTND_TESTS_ENGINE_EXACT_HARNESS_H_
#define ATTND_TESTS_ENGINE_EXACT_HARNESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/relative_error.h"

namespace attnd::engine::exact_test {

using oracle::RelativeError;

std::unique_ptr<const Engine> MakeExact(const LayerShape& shape, DataType storage = DataType::kF32);

// Tokens of one layer. Rows of masked tokens are zeros, as they are stored.
struct Tokens {
  LayerShape shape;
  std::int64_t count = 0;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<std::uint8_t> mask;  // 0: masked

  void Mask(std::int64_t token);
  void Round(const Engine& engine);  // as a layer does before it stores
  oracle::Context context() const;
};

Tokens RandomTokens(const LayerShape& shape, std::int64_t count, std::uint32_t seed,
                    float key_deviation = 1.0F);

// A layer's state at one position. Rows of the tail from `rows` on are NaN: nobody may read them.
struct Snapshot {
  std::shared_ptr<SealedState> sealed;
  std::int64_t sealed_tokens = 0;
  std::unique_ptr<Tail> tail;
  std::int64_t rows = 0;
  RowMask valid = 0;
};

// Seals tokens [from, to), both multiples of 64.
void SealTokens(const Engine& engine, const Tokens& tokens, std::int64_t from, std::int64_t to,
                SealedState& state);

// `spans`: blocks per Seal call, repeated, each into a clone of the state before.
Snapshot At(const Engine& engine, const Tokens& tokens, std::int64_t position,
            const std::vector<std::int64_t>& spans = {1 << 20});

struct Asked {
  bool causal = false;
  std::int64_t first_cut = 0;
  std::int64_t top_k = 0;
};

struct Answers {
  std::vector<float> outputs;
  std::vector<float> log_normalizers;
  std::vector<std::uint8_t> flags;
  std::vector<std::int64_t> top_positions;
  std::vector<float> top_weights;

  // Rows [first, first + count) of the answers to `queries` queries.
  Answers Slice(std::int64_t first, std::int64_t count, std::int64_t queries) const;
  bool operator==(const Answers& other) const;  // as bits
};

// Answers of the sizes asked for, in which every number still has to be written.
Answers Unwritten(const LayerShape& shape, std::int64_t count, const Asked& asked = {});
// All of them as where answers go.
AnswerView View(Answers& answers, const Asked& asked = {});

QueryGroup Group(const Snapshot& snapshot, const float* queries, std::int64_t count,
                 const Asked& asked = {});
Answers Attend(const Engine& engine, const Snapshot& snapshot, const float* queries,
               std::int64_t count, const Asked& asked = {});

}  // namespace attnd::engine::exact_test

#endif  // ATTND_TESTS_ENGINE_EXACT_HARNESS_H_

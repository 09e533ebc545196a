// Layers of every kind of engine, to be saved and made again.
#ifndef ATTND_TESTS_ENGINE_SAVED_LAYER_HARNESS_H_
#define ATTND_TESTS_ENGINE_SAVED_LAYER_HARNESS_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/layer_stream.h"
#include "engine/token_rows.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine::saved_test {

struct Kind {
  std::string name;
  EngineConfig config;
  float key_scale = 1.0F;
};
void PrintTo(const Kind& kind, std::ostream* os);

// One of every engine, map, rule and window.
std::vector<Kind> AllKinds();
Kind KindNamed(const std::string& name);

std::unique_ptr<const Engine> Make(const Kind& kind);

// Tokens with whatever gates the engine needs, some of them masked, among them all of block 2.
struct TokenStream {
  TokenStream(const Kind& kind, const Engine& engine, std::int64_t count);
  TokenBatch batch() const;

  std::int64_t tokens;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> log_decays;
  std::vector<float> rates;
  std::vector<std::uint8_t> mask;
};

// `base`, continued to `position`.
std::shared_ptr<const LayerState> Extend(const Engine& engine, const TokenStream& stream,
                                         const std::shared_ptr<const LayerState>& base,
                                         std::int64_t position);

// Outputs and flags of a few queries that see the whole of `state`.
struct Answered {
  std::vector<float> outputs;
  std::vector<std::uint8_t> flags;
  bool operator==(const Answered& other) const;  // as bits
};
Answered Ask(const Engine& engine, const LayerState& state);

// A layer as it is stored: segments of up to `segment` blocks.
struct Stored {
  std::string root;
  std::vector<std::string> segments;
};
Stored Save(const Engine& engine, const LayerState& state, std::int64_t segment);

absl::StatusOr<std::shared_ptr<const LayerState>> Load(const Engine& engine, const Stored& stored);

}  // namespace attnd::engine::saved_test

#endif  // ATTND_TESTS_ENGINE_SAVED_LAYER_HARNESS_H_

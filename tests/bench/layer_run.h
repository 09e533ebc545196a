// A layer of an engine without a server: tokens appended as a server appends them, queries over all
// of them. For benchmarks, on the calling thread; what an engine refuses ends the program.
#ifndef ATTND_TESTS_BENCH_LAYER_RUN_H_
#define ATTND_TESTS_BENCH_LAYER_RUN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/layer_stream.h"

namespace attnd::bench {

// The layer after these tokens, keys [n, H, d_k] and values [n, H, d_v].
std::shared_ptr<const engine::LayerState> Append(const engine::Engine& engine,
                                                 std::span<const float> keys,
                                                 std::span<const float> values,
                                                 engine::Scratch& scratch);

// What is asked of an engine beside the queries.
struct AskedOf {
  engine::Accuracy accuracy;
  const std::int64_t* positions = nullptr;  // borrowed; null: query i stands at position i where an
                                            // engine must know
};

// Runs all quanta of a plan for the queries.
class Attender {
 public:
  explicit Attender(const engine::Engine& engine) : engine_(engine), plan_(engine.NewPlan()) {}
  void Attend(const engine::LayerState& state, std::span<const float> queries, const AskedOf& asked,
              engine::Scratch& scratch);
  void Attend(const engine::LayerState& state, std::span<const float> queries,
              engine::Scratch& scratch) {
    Attend(state, queries, {}, scratch);
  }
  // Pieces that the last Attend was cut into.
  std::int64_t chains() const { return plan_->chains(); }
  const std::vector<float>& outputs() const { return outputs_; }     // [n, Hq, d_v]
  const std::vector<std::uint8_t>& flags() const { return flags_; }  // [n, Hq]
  // [n, Hq], of approximate() engines
  const std::vector<float>& errors() const { return errors_; }
  const std::vector<std::int64_t>& keys_evaluated() const { return keys_evaluated_; }

 private:
  const engine::Engine& engine_;
  std::unique_ptr<engine::AttendPlan> plan_;
  std::vector<std::int64_t> positions_;
  std::vector<float> outputs_;
  std::vector<std::uint8_t> flags_;
  std::vector<float> errors_;
  std::vector<std::int64_t> keys_evaluated_;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_LAYER_RUN_H_

// What a session should do, as simply as it can be said: the tokens it holds, one after another,
// and the engine asked about them directly. No server, no messages, no threads.
//
// Not thread-safe.
#ifndef ATTND_TESTS_E2E_MODEL_H_
#define ATTND_TESTS_E2E_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "engine/engine.h"
#include "engine/layer_stream.h"
#include "server/feature_map_store.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {

// A session of one layer.
class Model {
 public:
  // `pool`: the tokens that the session will hold, in order; `maps`: where LEARNED ones are.
  Model(const v1::LayerGroup& group, const Tokens& pool, server::FeatureMapStore& maps);

  std::int64_t position() const { return state_->position(); }
  const engine::Engine& engine() const { return *engine_; }

  // The next `count` tokens of the pool.
  void Append(std::int64_t count);
  // Outputs of queries over all tokens, as bytes; the queries stand at positions `first` and on.
  // `accuracy` is what engines that estimate are asked for.
  std::string Attend(const float* queries, std::int64_t count, std::int64_t first,
                     const engine::Accuracy& accuracy = {}) const;
  // Appends the next `count` tokens one by one and answers each one's query.
  std::string Step(const float* queries, std::int64_t count, const engine::Accuracy& accuracy = {});

 private:
  std::string Run(const engine::QueryGroup& group) const;

  std::shared_ptr<const engine::Engine> engine_;
  const Tokens& pool_;
  std::shared_ptr<const engine::LayerState> state_;
};

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_MODEL_H_

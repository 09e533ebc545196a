// The gated engine on the tensors of a real RWKV-5.2 network, where ../shared/data is present: its
// receptances, keys, values, decays and bonuses, and the outputs of the network itself.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/gated_harness.h"

namespace attnd::engine::gated_test {
namespace {

TEST(GatedRealData, Rwkv5IsReproducedTo1e5) {
  const std::optional<data::RecurrentSet> set = data::RwkvHeads();
  if (!set) GTEST_SKIP() << "../shared/data is not there";
  for (std::size_t layer = 0; layer < set->layers.size(); ++layer) {
    const data::RecurrentSet::Layer& network = set->layers[layer];
    Case c{"rwkv", set->tensors.shape, {}};
    c.config.feature_map.name = "identity";
    c.config.normalized = false;
    c.config.update.read_first = true;
    c.config.update.decay = UpdateRule::Decay::kConstant;
    for (const float decay : network.decays) c.config.update.log_decays.push_back(std::log(decay));
    c.config.update.bonus = network.bonus;
    const auto engine = Make(c);
    Stream stream(c, set->tensors.tokens, 1);
    stream.keys = set->tensors.layers[layer].keys;
    stream.values = set->tensors.layers[layer].values;
    // Steps of 64, as a model would read a text.
    auto state = EmptyLayer(*engine);
    double worst = 0;
    double largest = 0;
    for (std::int64_t done = 0; done < stream.tokens; done += kBlockTokens) {
      state = Append(*engine, stream, state, done + kBlockTokens);
      const float* queries = set->tensors.layers[layer].queries.data() + done * c.shape.query_row();
      const float* truth = network.outputs.data() + done * c.shape.output_row();
      for (const float output : Step(*engine, *state, queries, kBlockTokens).outputs) {
        worst =
            std::max(worst, std::abs(static_cast<double>(output) - static_cast<double>(*truth)));
        largest = std::max(largest, std::abs(static_cast<double>(*truth++)));
      }
    }
    std::printf("RWKV-5.2 layer %zu: largest error %.1e of outputs up to %.1f\n", layer, worst,
                largest);
    EXPECT_LE(worst, 1e-5 * largest);
  }
}

}  // namespace
}  // namespace attnd::engine::gated_test

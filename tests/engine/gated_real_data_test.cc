// The gated engine on the tensors of a real RWKV-5.2 network, where ../shared/data is present: its
// receptances, keys, values, decays and bonuses, and the outputs of the network itself.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/gated_harness.h"
#include "tests/engine/real_data.h"

namespace attnd::engine::gated_test {
namespace {

TEST(GatedRealData, Rwkv5IsReproducedTo1e5) {
  const std::filesystem::path data = real_data::Shared();
  if (!std::filesystem::exists(data / "qkv_rwkv52_n2048_q.npy")) {
    GTEST_SKIP() << data << " is not there";
  }
  constexpr std::int64_t kLayers = 3;
  constexpr std::int64_t kHeads = 8;
  constexpr std::int64_t kTokens = 2048;
  constexpr std::int64_t kDim = 8;
  constexpr std::int64_t kNumbers = kHeads * kTokens * kDim;
  const auto read = [&](const char* name) { return real_data::ReadF32(data / name); };
  const std::vector<float> q = read("qkv_rwkv52_n2048_q.npy");
  const std::vector<float> k = read("qkv_rwkv52_n2048_k.npy");
  const std::vector<float> v = read("qkv_rwkv52_n2048_v.npy");
  const std::vector<float> out = read("qkv_rwkv52_n2048_out.npy");
  const std::vector<float> decay = read("qkv_rwkv52_decay.npy");
  const std::vector<float> bonus = read("qkv_rwkv52_bonus_u.npy");
  ASSERT_EQ(std::ssize(q), kLayers * kNumbers);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    Case c{"rwkv", {kHeads, kHeads, kDim, kDim, 1.0F}, {}};
    c.config.feature_map.name = "identity";
    c.config.normalized = false;
    c.config.update.read_first = true;
    c.config.update.decay = UpdateRule::Decay::kConstant;
    const auto first = Size(layer * kHeads * kDim);
    for (std::size_t i = 0; i < Size(kHeads * kDim); ++i) {
      c.config.update.log_decays.push_back(std::log(decay[first + i]));
      c.config.update.bonus.push_back(bonus[first + i]);
    }
    const auto engine = Make(c);
    const auto rows = [&](const std::vector<float>& x) {
      return real_data::TokensFirst(x.data() + layer * kNumbers, kHeads, kTokens, kDim);
    };
    Stream stream(c, kTokens, 1);
    stream.keys = rows(k);
    stream.values = rows(v);
    const std::vector<float> queries = rows(q);
    const std::vector<float> expected = rows(out);
    // Steps of 64, as a model would read a text.
    auto state = EmptyLayer(*engine);
    double worst = 0;
    for (std::int64_t done = 0; done < kTokens; done += kBlockTokens) {
      state = Append(*engine, stream, state, done + kBlockTokens);
      const std::int64_t row = done * kHeads * kDim;
      const Answers answers = Step(*engine, *state, queries.data() + row, kBlockTokens);
      for (std::size_t i = 0; i < answers.outputs.size(); ++i) {
        const double truth = static_cast<double>(expected[Size(row) + i]);
        worst = std::max(worst, std::abs(static_cast<double>(answers.outputs[i]) - truth));
      }
    }
    double largest = 0;
    for (const float x : expected) largest = std::max(largest, std::abs(static_cast<double>(x)));
    std::printf("RWKV-5.2 layer %lld: largest error %.1e of outputs up to %.1f\n",
                static_cast<long long>(layer), worst, largest);
    EXPECT_LE(worst, 1e-5 * std::max(largest, 1.0));
  }
}

}  // namespace
}  // namespace attnd::engine::gated_test

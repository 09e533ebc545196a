#include "client/chunking.h"

#include <gtest/gtest.h>

namespace attnd::client {
namespace {

v1::ServerLimits Limits(std::int64_t message, std::int64_t response) {
  v1::ServerLimits limits;
  limits.set_max_message_bytes(message);
  limits.set_max_response_bytes(response);
  return limits;
}

TEST(Chunking, StaysBelowTheServersLimitsAndNearTheTarget) {
  const ChunkLimits chunk = LimitsFor(Limits(8 << 20, 16 << 20), {});
  EXPECT_EQ(chunk.request_bytes, 1 << 20);
  EXPECT_EQ(chunk.response_bytes, 4 << 20);
  EXPECT_EQ(*RowsPerMessage(chunk, 512, 0), 2048);
  EXPECT_EQ(*RowsPerMessage(chunk, 512, 4096), 1024);

  const ChunkLimits small = LimitsFor(Limits(64 << 10, 64 << 10), {});
  EXPECT_LT(small.request_bytes, 64 << 10);
  EXPECT_LT(*RowsPerMessage(small, 512, 0) * 512, 64 << 10);
}

TEST(Chunking, ARowLargerThanTheTargetGoesAlone) {
  const ChunkLimits chunk = LimitsFor(Limits(8 << 20, 16 << 20), {});
  EXPECT_EQ(*RowsPerMessage(chunk, 3 << 20, 0), 1);
  EXPECT_EQ(*RowsPerMessage(chunk, 1, 9 << 20), 1);
}

TEST(Chunking, ARowThatCannotBeSentIsRefused) {
  const ChunkLimits chunk = LimitsFor(Limits(8 << 20, 16 << 20), {});
  EXPECT_FALSE(RowsPerMessage(chunk, 8 << 20, 0).ok());
  EXPECT_FALSE(RowsPerMessage(chunk, 1, 16 << 20).ok());
  EXPECT_FALSE(RowsPerMessage(LimitsFor(Limits(0, 0), {}), 64, 64).ok());
}

TEST(Chunking, CountsEverythingAnAnswerCanHold) {
  const LayerShape exact{true, 2, 4, 8, 16};
  const LayerShape linear{false, 2, 4, 8, 16};
  v1::AnswerOptions options;
  EXPECT_EQ(AnswerBytesPerRow(exact, options), 4 * 16 * 4);
  options.set_output_dtype(v1::BF16);
  EXPECT_EQ(AnswerBytesPerRow(exact, options), 4 * 16 * 2);
  options.set_flags(true);
  options.set_denominators(true);
  EXPECT_EQ(AnswerBytesPerRow(linear, options), 4 * (32 + 1 + 9));
  options.set_partials(true);
  EXPECT_EQ(AnswerBytesPerRow(exact, options), 4 * (32 + 1 + 9 + 4));
  EXPECT_EQ(AnswerBytesPerRow(linear, options), 4 * (32 + 1 + 9 + 64 + 4 + 5));
  options.set_top_k(10);
  EXPECT_EQ(AnswerBytesPerRow(exact, options), 4 * (32 + 1 + 9 + 4 + 140));
  options.set_estimates(true);
  EXPECT_EQ(AnswerBytesPerRow(exact, options), 4 * (32 + 1 + 9 + 4 + 140 + 29));
}

TEST(Chunking, LayersOfGroups) {
  v1::Session session;
  v1::SessionConfig& config = *session.mutable_config();
  v1::LayerGroup* group = config.add_layer_groups();
  group->set_count(2);
  group->set_key_dim(8);
  group->mutable_exact();
  group = config.add_layer_groups();
  group->set_count(1);
  group->set_key_dim(16);
  v1::UpdateRule* update = group->mutable_linear()->mutable_update();
  update->set_decay(v1::UpdateRule::PER_FEATURE);
  update->set_delta(true);
  session.add_engine_facts();
  session.add_engine_facts()->set_feature_dim(48);
  const auto layers = LayersOf(session);
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_TRUE(layers[1].softmax);
  EXPECT_EQ(layers[1].log_decays, 0);
  EXPECT_FALSE(layers[2].softmax);
  EXPECT_EQ(layers[2].key_dim, 16);
  EXPECT_EQ(layers[2].log_decays, 48);
  EXPECT_EQ(layers[2].rates, 1);
  EXPECT_FALSE(layers[2].whole_batch);

  config.clear_layer_groups();
  for (const auto mode : {v1::KdeConfig::AUTO, v1::KdeConfig::PAPER}) {
    config.add_layer_groups()->mutable_kde()->set_mode(mode);
  }
  EXPECT_TRUE(LayersOf(session)[0].softmax);
  EXPECT_FALSE(LayersOf(session)[0].whole_batch);
  EXPECT_TRUE(LayersOf(session)[1].whole_batch);
}

}  // namespace
}  // namespace attnd::client

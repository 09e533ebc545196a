// A client, a fake server and numbers to send, for the tests of sessions and streams.
#ifndef ATTND_TESTS_CLIENT_SESSION_FIXTURE_H_
#define ATTND_TESTS_CLIENT_SESSION_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/error.h"
#include "client/session.h"
#include "tests/client/fake_clock.h"
#include "tests/client/fake_server.h"

namespace attnd::client {

constexpr std::int64_t kKeyDim = 4;
constexpr std::int64_t kValueDim = 3;

// Tokens [n, H, d] of small integers, so that sums are exact; different for every position.
struct TestTokens {
  TestTokens(std::int64_t first, std::int64_t count, std::int64_t heads = 1) {
    for (std::int64_t i = first * heads; i < (first + count) * heads; ++i) {
      for (std::int64_t j = 0; j < kKeyDim; ++j) keys.push_back(static_cast<float>((i + j) % 7));
      for (std::int64_t j = 0; j < kValueDim; ++j) {
        values.push_back(static_cast<float>((i * 3 + j) % 11));
      }
      for (std::int64_t j = 0; j < kKeyDim; ++j) {
        queries.push_back(static_cast<float>((i * 5 + j) % 13));
      }
    }
    key_shape = {count, heads, kKeyDim};
    value_shape = {count, heads, kValueDim};
  }
  LayerTokens tokens(std::int64_t layer = 0) const {
    return {layer, F32(keys, key_shape), F32(values, value_shape), ""};
  }
  ConstTensor query_tensor() const { return F32(queries, key_shape); }

  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> queries;
  std::vector<std::int64_t> key_shape;
  std::vector<std::int64_t> value_shape;
};

class SessionFixture : public ::testing::Test {
 protected:
  void Connect() {
    ClientOptions options;
    options.target = server_.target();
    options.clock = clock_;
    options.uniform = [] { return 0.5; };
    options.retry.attempt_timeout = absl::Seconds(20);
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  static v1::SessionConfig Config(int layers = 1, int heads = 1) {
    v1::SessionConfig config;
    v1::LayerGroup* group = config.add_layer_groups();
    group->set_count(layers);
    group->set_kv_heads(heads);
    group->set_query_heads(heads);
    group->set_key_dim(kKeyDim);
    group->set_value_dim(kValueDim);
    group->mutable_exact();
    return config;
  }

  void CreateSession(int layers = 1, int heads = 1) {
    if (client_ == nullptr) {
      ASSERT_NO_FATAL_FAILURE(Connect());
    }
    auto session = client_->CreateSession(Config(layers, heads));
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
  }

  FakeServer server_;
  std::shared_ptr<FakeClock> clock_ = std::make_shared<FakeClock>();
  std::shared_ptr<Client> client_;
  std::shared_ptr<SessionHandle> session_;
};

}  // namespace attnd::client

#endif  // ATTND_TESTS_CLIENT_SESSION_FIXTURE_H_

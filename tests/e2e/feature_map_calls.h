// Learned feature maps of one small layer, their upload by raw calls, and layers that use them.
#ifndef ATTND_TESTS_E2E_FEATURE_MAP_CALLS_H_
#define ATTND_TESTS_E2E_FEATURE_MAP_CALLS_H_

#include <cstddef>
#include <cstdint>

#include "grpcpp/grpcpp.h"
#include "tests/e2e/harness.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::e2e {

inline constexpr Shape kMapShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 6, .value_dim = 5};

// Of kMapShape, with 10 rows per head and biases.
inline TestMap MapOf(v1::FeatureMapHeader::Activation activation, std::uint32_t seed) {
  return MakeTestMap(activation, 2, 4, 6, 10, true, seed);
}

// The whole upload, in chunks of `piece` bytes.
inline Reply<v1::PutFeatureMapResponse> Put(v1::AttentionService::Stub& stub, const TestMap& map,
                                            std::size_t piece = 1 << 16) {
  Reply<v1::PutFeatureMapResponse> reply;
  const auto context = Context();
  const auto writer = stub.PutFeatureMap(context.get(), &reply.value);
  bool open = writer->Write(map.Header());
  for (std::size_t at = 0; open && at < map.payload.size(); at += piece) {
    open = writer->Write(map.Chunk(at, piece));
  }
  writer->WritesDone();
  reply.status = writer->Finish();
  return reply;
}

inline v1::LayerGroup LearnedGroup(const TestMap& map, const Shape& shape = kMapShape) {
  v1::LayerGroup group = LinearGroup(shape, v1::LEARNED);
  group.mutable_linear()->mutable_feature_map()->set_weights(map.header.sha256());
  return group;
}

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_FEATURE_MAP_CALLS_H_

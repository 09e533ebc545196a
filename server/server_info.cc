#include "server/server_info.h"

#include "engine/cpu.h"
#include "server/proto_time.h"
#include "server/session_config.h"
#include "server/version.h"

namespace attnd::server {

BuildInfo MakeBuildInfo() { return {Version(), engine::ActiveIsa(), Compiler(), kNumericsVersion}; }

v1::ServerInfo MakeServerInfo(const Options& options) {
  v1::ServerInfo info;
  info.set_version(Version());
  info.set_numerics_version(kNumericsVersion);
  info.set_isa(engine::ActiveIsa());
  for (const char* engine : {"exact", "linear", "kde"}) info.add_engines(engine);
  for (int kind = v1::FeatureMapKind_MIN; kind <= v1::FeatureMapKind_MAX; ++kind) {
    const auto map = static_cast<v1::FeatureMapKind>(kind);
    if (!FeatureMapName(map).empty()) info.add_feature_maps(map);
  }
  info.set_workers(options.workers);
  v1::ServerLimits& limits = *info.mutable_limits();
  limits.set_max_message_bytes(options.max_message_bytes);
  limits.set_max_response_bytes(options.max_response_bytes);
  limits.set_max_inflight_bytes(options.max_inflight_bytes);
  limits.set_max_queued_requests(options.max_queued_requests);
  limits.set_max_sessions(options.max_sessions);
  limits.set_max_state_bytes(options.max_state_bytes);
  limits.set_max_stream_messages(options.max_stream_messages);
  limits.set_max_stream_bytes(options.max_stream_bytes);
  limits.set_max_head_dim(options.max_head_dim);
  limits.set_max_heads(options.max_heads);
  limits.set_max_layers(options.max_layers);
  *limits.mutable_max_time_to_live() = ToProto(options.max_time_to_live);
  *limits.mutable_default_time_to_live() = ToProto(options.default_time_to_live);
  limits.set_max_feature_map_bytes(options.max_feature_map_bytes);
  limits.set_max_feature_map_size(options.max_feature_map_size);
  return info;
}

}  // namespace attnd::server

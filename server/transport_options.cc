#include "server/transport_options.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "grpcpp/resource_quota.h"

namespace attnd::server {
namespace {

// gRPC's own buffers on top of what is admitted: requests that are being received.
constexpr std::int64_t kTransportFactor = 2;
// HTTP/2 headers of one call.
constexpr int kMaxMetadataBytes = 8 << 10;

int Millis(absl::Duration duration) {
  return static_cast<int>(
      std::min<std::int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<int>::max()));
}

}  // namespace

void AddTransportOptions(const Options& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);
  // gRPC 1.51 checks the size of a compressed message before it inflates it, and then inflates
  // without a limit: 8 MiB of deflated zeros are 8 GiB. Floats hardly compress; nobody needs it.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Millis(options.min_ping_interval));
  if (options.max_connection_age > absl::ZeroDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Millis(options.max_connection_age));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               Millis(options.max_connection_age_grace));
  }
  // Another server on the port is an error, not company.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("attnd");
  quota.Resize(static_cast<std::size_t>(kTransportFactor * options.max_inflight_bytes));
  builder.SetResourceQuota(quota);
}

}  // namespace attnd::server

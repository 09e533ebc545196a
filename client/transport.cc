#include "client/transport.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "client/duration.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace attnd::client {
namespace {

constexpr char kSessionHeader[] = "x-attnd-session";

// An infinite time is the largest number, which gRPC takes for "never".
int Milliseconds(absl::Duration duration) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  return static_cast<int>(
      std::clamp<std::int64_t>(absl::ToInt64Milliseconds(duration), 0, kLargest));
}

std::unique_ptr<Transport::Stub> MakeStub(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The library's default waits a second before it connects again, longer than most restarts take.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  return v1::AttentionService::NewStub(
      grpc::CreateCustomChannel(options.target, grpc::InsecureChannelCredentials(), arguments));
}

// A generator per thread: the jitter must not make callers wait for each other.
double UniformOfThread() {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator);
}

ClientOptions WithDefaults(ClientOptions options) {
  if (options.clock == nullptr) options.clock = std::make_shared<RealClock>();
  if (options.uniform == nullptr) options.uniform = UniformOfThread;
  return options;
}

}  // namespace

Transport::Transport(ClientOptions options)
    : options_(WithDefaults(std::move(options))), stub_(MakeStub(options_)) {}

absl::Time Transport::DeadlineFor(const CallOptions& call) const {
  const absl::Duration timeout =
      call.timeout > absl::ZeroDuration() ? call.timeout : options_.default_timeout;
  return options_.clock->Now() + timeout;
}

std::chrono::steady_clock::time_point Transport::WaitDeadline(absl::Time deadline) const {
  return std::chrono::steady_clock::now() + ToChrono(deadline - options_.clock->Now());
}

void Transport::Prepare(const std::string& session_id, grpc::ClientContext* context) const {
  if (!session_id.empty()) context->AddMetadata(kSessionHeader, session_id);
}

absl::StatusOr<v1::ServerInfo> Transport::Info(absl::Time deadline) {
  {
    MutexLock lock(info_mutex_);
    if (info_ != nullptr) return *info_;
  }
  auto info = std::make_unique<v1::ServerInfo>();
  const absl::Status status =
      Call(&Stub::GetServerInfo, "", v1::GetServerInfoRequest(), info.get(), deadline);
  if (!status.ok()) return status;
  MutexLock lock(info_mutex_);
  info_ = std::move(info);
  return *info_;
}

}  // namespace attnd::client

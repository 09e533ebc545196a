// The server's Prometheus metrics.
//
// Every time series exists, with zero, from construction on, and none is labelled by session or
// tenant: their number is fixed. An update is an array index and an add (counters: 20 ns) or an
// observation under a short mutex (histograms: 60 ns; once per message, however many rows it has);
// it allocates nothing and looks nothing up. Durations are given in nanoseconds and exposed in
// seconds.
//
// Thread-safe.
#ifndef ATTND_SERVER_METRICS_H_
#define ATTND_SERVER_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace attnd::server {

// The calls of attnd.v1.AttentionService, in the order of the contract.
enum class RpcMethod {
  kCreateSession,
  kGetSession,
  kListSessions,
  kUpdateSession,
  kDeleteSession,
  kAppend,
  kAttend,
  kStep,
  kStream,
  kPutFeatureMap,
  kFlushSession,
  kGetServerInfo,
};
enum class CallKind { kAppend, kAttend, kStep };
enum class Transport { kUnary, kStream };
enum class EngineKind { kExact, kLinear, kKde };
enum class Stage { kQueue, kDecode, kCompute, kEncode };
// Refusals for a limit; the label is the name of the ErrorReason.
enum class RejectReason {
  kQueueFull,
  kInflightBytes,
  kTooManySessions,
  kStateBytes,
  kResponseTooLarge,
  kSlowReader,
  kFeatureMapBytes,
  kShuttingDown,
};
enum class CloseReason { kDeleted, kExpired };
// How an upload of a learned feature map ends: kRefused is a limit or a server that drains,
// kAbandoned a client that went away or took too long.
enum class UploadResult { kStored, kAlreadyThere, kInvalid, kRefused, kAbandoned };

// Labels of attnd_build_info.
struct BuildInfo {
  std::string version;
  std::string isa;
  std::string compiler;
  int numerics_version = 0;
};

// Values read when metrics are collected.
struct GaugeValues {
  std::int64_t sessions = 0;
  std::int64_t state_bytes = 0;
  std::int64_t inflight_bytes = 0;
  std::int64_t queue_depth = 0;
  std::int64_t feature_maps = 0;
  std::int64_t feature_map_bytes = 0;
};

class Metrics {
 public:
  explicit Metrics(const BuildInfo& build);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  // grpc_server_*: one RpcStarted and one RpcHandled per call. grpc_code is a grpc::StatusCode;
  // numbers outside 0..16 count as Unknown.
  void RpcStarted(RpcMethod method);
  void RpcHandled(RpcMethod method, int grpc_code, std::int64_t nanos);
  void MessageReceived(RpcMethod method);
  void MessageSent(RpcMethod method);

  // attnd_message_seconds: from the arrival of a message to its answer being handed to gRPC, for
  // messages whose session, and so its engine, was found.
  void ObserveMessage(CallKind call, Transport transport, EngineKind engine, std::int64_t nanos);
  // attnd_stage_seconds.
  void ObserveStage(Stage stage, EngineKind engine, std::int64_t nanos);

  void AddTokens(EngineKind engine, std::int64_t count);
  void AddQueries(EngineKind engine, std::int64_t count);
  // attnd_kde_*: what became of `rows` query rows of one head each. Reads errors, keys_evaluated,
  // paths, calibrated and, where it is not null, audited_errors: below 0 for rows of no audit.
  void AddEstimates(const engine::EstimateView& estimates, std::int64_t rows);
  void AddRejected(RejectReason reason);
  void AddSessionCreated();
  void AddSessionClosed(CloseReason reason);
  void AddUpload(UploadResult result);

  // Where the gauges come from; called from the HTTP thread at each collection. Zeros until set,
  // and again after setting an empty function, which waits for a collection that is under way.
  void SetGaugeSource(std::function<GaugeValues()> source);

  // All metrics in Prometheus' text format 0.0.4.
  std::string Expose();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_METRICS_H_

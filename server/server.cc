#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/admission.h"
#include "server/call_registry.h"
#include "server/failure_log.h"
#include "server/feature_map_store.h"
#include "server/http_endpoint.h"
#include "server/logging.h"
#include "server/message_handler.h"
#include "server/metrics.h"
#include "server/readiness.h"
#include "server/scheduler.h"
#include "server/server_info.h"
#include "server/service.h"
#include "server/session_directory.h"
#include "server/session_keeper.h"
#include "server/session_loader.h"
#include "server/session_store.h"
#include "server/store/log_writer.h"
#include "server/store/rocksdb_store.h"
#include "server/transport_options.h"

namespace attnd::server {
namespace {

// Attends that wait for a position may hold this part of the limits on messages, besides them.
constexpr std::int64_t kWaitShare = 4;
// How long calls that hold nothing may take to end by themselves.
constexpr absl::Duration kIdlePatience = absl::Seconds(1);
// How often Drain() looks whether the work under way has ended.
constexpr absl::Duration kDrainPoll = absl::Milliseconds(5);
// How long calls are refused by name before gRPC is told to stop. From then on it ends calls that
// arrive with CANCELLED, which looks to clients as if they had done it and is not retried: by then
// most have heard and gone elsewhere.
constexpr absl::Duration kRefusing = absl::Milliseconds(200);
// A session in use whose time-to-live is a nanosecond must not keep the reaper running.
constexpr std::int64_t kShortestSleepNanos = 10'000'000;
LogWriterOptions WriterOptions(const Options& options) {
  LogWriterOptions writer;
  writer.fsync = options.fsync;
  writer.interval_nanos = absl::ToInt64Nanoseconds(options.fsync_interval);
  return writer;
}

// The health service's name of the whole server is "".
constexpr char kServiceName[] = "attnd.v1.AttentionService";

}  // namespace

// In the order of dependence: what stands below refers to what stands above, and is destroyed
// first.
struct Server::Impl {
  // `opened` is null without a store.
  Impl(const Options& opts, const Clock& system_clock, SessionTable::Random random,
       std::unique_ptr<Store> opened)
      : options(opts),
        clock(system_clock),
        metrics(MakeBuildInfo()),
        failures(clock),
        admission(options.max_queued_requests, options.max_inflight_bytes),
        waits(std::max<std::int64_t>(options.max_queued_requests / kWaitShare, 1),
              options.max_inflight_bytes / kWaitShare),
        budget(options.max_state_bytes),
        scheduler(options.workers, clock),
        maps(options, clock),
        sessions(options, clock, scheduler, budget, metrics, std::move(random)),
        store(std::move(opened)),
        lasting(store == nullptr ? nullptr : std::make_unique<Lasting>(*this)),
        directory(sessions, lasting == nullptr ? nullptr : &lasting->store,
                  lasting == nullptr ? nullptr : &lasting->loader, clock),
        services{options, clock,  metrics, admission,
                 waits,   budget, calls,   lasting == nullptr ? nullptr : &lasting->store},
        messages(services, directory, sessions, failures),
        service(services, directory, sessions, lasting == nullptr ? nullptr : &lasting->keeper,
                messages, maps, MakeServerInfo(options)) {
    metrics.SetGaugeSource([this] {
      const FeatureMapStore::Usage used = maps.usage();
      return GaugeValues{sessions.size(),
                         budget.used(),
                         admission.bytes() + waits.bytes(),
                         admission.requests() + waits.requests(),
                         used.maps,
                         used.bytes};
    });
  }
  ~Impl() { metrics.SetGaugeSource({}); }

  // What sessions that last need besides their store.
  struct Lasting {
    explicit Lasting(Impl& impl)
        : writer(*impl.store, impl.clock, WriterOptions(impl.options)),
          store(*impl.store, writer, impl.clock, impl.options.fsync == FsyncPolicy::kAlways),
          loader(
              store, impl.options, impl.budget,
              [&impl](const SessionKey& key, SessionPlan plan, const SessionBirth& birth) {
                return impl.sessions.Make(key, std::move(plan), birth);
              },
              [&impl] { return impl.sessions.NewGeneration(); }),
          keeper(impl.sessions, store, impl.failures, impl.clock,
                 absl::ToInt64Nanoseconds(impl.options.checkpoint_interval)) {}

    LogWriter writer;
    SessionStore store;
    SessionLoader loader;
    SessionKeeper keeper;
  };

  void Maintain() ABSL_LOCKS_EXCLUDED(mutex);
  void SetHealth(bool serving);

  const Options options;
  const Clock& clock;
  Metrics metrics;
  FailureLog failures;
  Admission admission;
  Admission waits;
  StateBudget budget;
  Scheduler scheduler;
  FeatureMapStore maps;
  SessionTable sessions;
  const std::unique_ptr<Store> store;
  const std::unique_ptr<Lasting> lasting;
  SessionDirectory directory;
  CallRegistry calls;
  const CallServices services;
  MessageHandler messages;
  Service service;
  Readiness readiness;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<HttpEndpoint> http;
  std::string grpc_address;
  std::string http_address;

  Mutex mutex;
  CondVar stop_maintenance;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::thread maintenance;
};

// Removes idle sessions and feature maps and ends calls whose peer does not read, or does not
// finish its upload. Sleeps until the next expiry, or for the shortest of their timeouts if that is
// sooner: a wake-up every 30 s by default, however many sessions there are.
void Server::Impl::Maintain() {
  const std::int64_t patience = absl::ToInt64Nanoseconds(options.slow_reader_timeout);
  const std::int64_t upload_timeout = absl::ToInt64Nanoseconds(options.feature_map_upload_timeout);
  mutex.Lock();
  while (!stopping) {
    mutex.Unlock();
    calls.EndStuck(clock.MonotonicNanos(), patience);
    const std::int64_t next = std::min(directory.ExpireIdle(), maps.ExpireIdle());
    mutex.Lock();
    const std::int64_t wait = std::min({patience, upload_timeout, next - clock.MonotonicNanos()});
    if (!stopping) stop_maintenance.WaitFor(&mutex, std::max(wait, kShortestSleepNanos));
  }
  mutex.Unlock();
}

void Server::Impl::SetHealth(bool serving) {
  grpc::HealthCheckServiceInterface* health = grpc->GetHealthCheckService();
  health->SetServingStatus(serving);
  health->SetServingStatus(kServiceName, serving);
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options, const Clock& clock,
                                                      SessionTable::Random random) {
  std::unique_ptr<Store> store;
  if (!options.data_dir.empty()) {
    absl::StatusOr<std::unique_ptr<RocksDbStore>> opened =
        RocksDbStore::Open({.directory = options.data_dir});
    if (!opened.ok()) {
      return absl::Status(opened.status().code(),
                          absl::StrCat("--data_dir: ", std::string(opened.status().message())));
    }
    store = *std::move(opened);
    if (store->Facts().dropped_damaged_writes) {
      Log(LogLevel::kError, "the store's last writes were damaged and are dropped",
          {{"data_dir", options.data_dir}});
    }
  }
  auto impl = std::make_unique<Impl>(options, clock, std::move(random), std::move(store));
  if (!options.http_listen.empty()) {
    absl::StatusOr<std::unique_ptr<HttpEndpoint>> http = HttpEndpoint::Start(
        options.http_listen, [&metrics = impl->metrics] { return metrics.Expose(); },
        impl->readiness);
    if (!http.ok()) return http.status();
    impl->http = *std::move(http);
    impl->http_address = impl->http->address();
  }

  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&impl->service);
  AddTransportOptions(options, builder);
  impl->grpc = builder.BuildAndStart();
  if (!impl->grpc || port == 0) {
    return absl::UnavailableError(absl::StrCat("--listen: cannot bind ", options.listen));
  }
  impl->grpc_address = absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
  impl->SetHealth(true);
  impl->readiness.Set(Readiness::State::kReady);
  impl->maintenance = std::thread([impl = impl.get()] { impl->Maintain(); });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::~Server() { Drain(); }

const std::string& Server::grpc_address() const { return impl_->grpc_address; }
const std::string& Server::http_address() const { return impl_->http_address; }
SessionTable& Server::sessions() { return impl_->sessions; }

namespace {

// An infinite one is ten years, which can still be added to a time.
std::chrono::steady_clock::duration Nanos(absl::Duration duration) {
  constexpr absl::Duration kMost = absl::Hours(24 * 3650);
  return std::chrono::nanoseconds(absl::ToInt64Nanoseconds(std::min(duration, kMost)));
}

}  // namespace

void Server::Drain() {
  Impl& impl = *impl_;
  if (!impl.grpc) return;
  // Not the wall clock: one that is set back must not prolong a drain.
  using SteadyClock = std::chrono::steady_clock;
  const SteadyClock::time_point start = SteadyClock::now();
  Log(LogLevel::kInfo, "draining",
      {{"sessions", impl.sessions.size()}, {"requests", impl.admission.requests()}});
  impl.SetHealth(false);
  impl.readiness.Set(Readiness::State::kDraining);
  absl::SleepFor(impl.options.drain_delay);

  const SteadyClock::time_point deadline = SteadyClock::now() + Nanos(impl.options.drain_deadline);
  impl.messages.Drain();
  impl.directory.Stop();
  impl.calls.Drain();
  const SteadyClock::time_point refuse_until =
      std::min(SteadyClock::now() + Nanos(kRefusing), deadline);
  while (SteadyClock::now() < refuse_until ||
         (impl.admission.requests() > 0 && SteadyClock::now() < deadline)) {
    absl::SleepFor(kDrainPoll);
  }
  // Calls that have not ended by the deadline are cancelled; their jobs end at the next quantum.
  // Without requests nothing is left but idle streams, such as a health watch: they need not wait.
  SteadyClock::duration patience = deadline - SteadyClock::now();
  if (impl.admission.requests() == 0) patience = std::min(patience, Nanos(kIdlePatience));
  impl.grpc->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::system_clock::duration>(patience));
  impl.grpc->Wait();
  impl.scheduler.Stop();
  {
    MutexLock lock(&impl.mutex);
    impl.stopping = true;
    impl.stop_maintenance.SignalAll();
  }
  impl.maintenance.join();
  if (impl.lasting != nullptr) {
    impl.lasting->keeper.Stop();
    absl::Status stopped = impl.lasting->writer.Stop();
    if (!stopped.ok()) {
      Log(LogLevel::kError, "the store's last writes may be lost",
          {{"message", std::string(stopped.message())}});
    }
  }
  impl.http = nullptr;
  impl.grpc = nullptr;
  Log(LogLevel::kInfo, "stopped",
      {{"seconds", std::chrono::duration<double>(SteadyClock::now() - start).count()}});
}

}  // namespace attnd::server

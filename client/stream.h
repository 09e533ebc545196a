// A bidirectional stream on one session: many small messages without waiting for each answer.
//
// Back-pressure: a send blocks while as many messages or bytes are unanswered as the window allows.
// Answers come in the order of the messages, to callbacks on one thread of the stream. A callback
// must not send on, resume or finish its own stream (refused with FAILED_PRECONDITION): it would
// wait for itself.
//
// Each message has its own status. After a failed Append or Step the messages that were already on
// their way to the same layer fail too (their position is wrong now), and further sends to that
// layer are refused until Resume(layer), so that no later token can slip into the place of a lost
// one.
//
// When the stream ends, every unanswered message fails with the stream's status, whose message says
// where it stood. Reconnecting is the caller's: SessionHandle::Refresh() or send the unanswered
// messages again from the acknowledged position; the server recognises those that did arrive.
//
// Thread-safe; sends from several threads are ordered as they get in. The destructor cancels what
// was not finished.
#ifndef ATTND_CLIENT_STREAM_H_
#define ATTND_CLIENT_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/calls.h"
#include "client/chunking.h"
#include "client/ledger.h"
#include "client/mutex.h"
#include "grpcpp/client_context.h"

namespace attnd::client {

class Transport;

struct StreamOptions {
  // Unanswered messages and request bytes at which a send blocks; kept below the server's own
  // bounds. A message larger than the byte window goes alone.
  std::int32_t max_unanswered = 32;
  std::int64_t max_unanswered_bytes = std::int64_t{4} << 20;
  // How long a send may block; zero: ClientOptions.default_timeout.
  CallOptions send;
  // Lifetime of the stream; zero: no bound.
  absl::Duration lifetime = absl::ZeroDuration();
};

// What a stream knows of its session.
struct StreamSession {
  std::string id;
  std::uint64_t generation = 0;
  std::vector<LayerShape> shapes;
  ChunkLimits limits;
  v1::ServerLimits server_limits;
  std::shared_ptr<Ledger> ledger;
};

class Stream {
 public:
  template <class Result>
  using Callback = std::function<void(absl::StatusOr<Result>)>;
  template <class Result>
  using Future = std::future<absl::StatusOr<Result>>;

  // Use SessionHandle::OpenStream.
  static absl::StatusOr<std::unique_ptr<Stream>> Open(std::shared_ptr<Transport> transport,
                                                      StreamSession session,
                                                      const StreamOptions& options);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Sends one message. OK: `done` will be called exactly once. Otherwise it is never called.
  // INVALID_ARGUMENT if the call does not fit one message; a unary call would be cut.
  absl::Status Append(std::span<const LayerTokens> tokens, Callback<AppendResult> done);
  absl::Status Attend(std::int64_t layer, const ConstTensor& queries, const AttendOptions& options,
                      Callback<AttendResult> done);
  absl::Status Step(const LayerTokens& tokens, const ConstTensor& queries,
                    const StepOptions& options, Callback<StepResult> done);

  // The same with a future, which also carries a failed send.
  Future<AppendResult> Append(const LayerTokens& tokens);
  Future<AttendResult> Attend(std::int64_t layer, const ConstTensor& queries,
                              const AttendOptions& options = {});
  Future<StepResult> Step(const LayerTokens& tokens, const ConstTensor& queries,
                          const StepOptions& options = {});

  // Allows sends to a layer again after a failed message, from its acknowledged position. Waits for
  // the messages that are still on their way. Not from a callback.
  absl::Status Resume(std::int64_t layer);

  // Ends the sending side, waits for all answers and returns the status of the stream. Later calls
  // return the same. Not from a callback.
  absl::Status Finish();

  // Ends the stream now; unanswered messages fail with CANCELLED.
  void Cancel();

 private:
  // One unanswered message.
  struct Pending {
    std::uint64_t id = 0;
    std::int64_t bytes = 0;
    // The layers it changes.
    std::vector<std::int64_t> layers;
    // Given the answer, or the reason why there is none.
    std::function<void(absl::StatusOr<v1::StreamResponse>)> done;
  };
  struct Change {
    std::int64_t layer;
    std::int64_t rows;
  };

  Stream(std::shared_ptr<Transport> transport, StreamSession session, const StreamOptions& options);

  // `fill` receives the positions of `changes`.
  absl::Status Send(
      std::span<const Change> changes, bool is_step, std::int64_t bytes,
      const std::function<void(std::span<const std::int64_t>, v1::StreamRequest*)>& fill,
      std::function<void(absl::StatusOr<v1::StreamResponse>)> done);
  absl::Status TakeWindow(std::int64_t bytes, Ledger::Deadline deadline);
  absl::Status CheckOpen(std::span<const Change> changes);
  void ReadAnswers();
  // Removes the oldest pending message and calls it back.
  void Settle(absl::StatusOr<v1::StreamResponse> answer);
  void EndStream(absl::Status status);
  std::string Standing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Transport> transport_;
  const StreamSession session_;
  const StreamOptions options_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriterInterface<v1::StreamRequest, v1::StreamResponse>> call_;

  // Orders the sends: held from the choice of a position to the end of the write. Taken before
  // mutex_.
  Mutex send_mutex_;
  std::uint64_t next_id_ ABSL_GUARDED_BY(send_mutex_) = 1;
  bool writes_done_ ABSL_GUARDED_BY(send_mutex_) = false;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  // Messages and bytes that count against the window: those of pending_, the one that is being
  // sent, and the one whose callback runs.
  std::int64_t window_messages_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t window_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_answered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::int64_t> failed_layers_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);

  std::thread reader_;
  std::thread::id reader_id_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_STREAM_H_

// One message under way: an Append, Attend or Step, unary or of a stream, from its admission to its
// answer. Jobs are made of it.
#ifndef ATTND_SERVER_CALL_H_
#define ATTND_SERVER_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/admission.h"
#include "server/call_registry.h"
#include "server/cancellation.h"
#include "server/clock.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/session.h"

namespace attnd::server {

// How a message is answered: its status, and its share of the admission, to be held until the
// answer has left.
using Answered = std::function<void(const absl::Status&, Admission::Ticket)>;

class SessionStore;

// What a message needs of the server. The objects outlive all calls.
struct CallServices {
  const Options& options;
  const Clock& clock;
  Metrics& metrics;
  Admission& admission;  // of messages that are queued, run, or are being answered
  Admission& waits;      // of Attends that wait for a position
  StateBudget& budget;
  CallRegistry& calls;
  SessionStore* store = nullptr;  // null: there are EPHEMERAL sessions only
};

// Where a message comes from.
struct CallOrigin {
  Transport transport = Transport::kUnary;
  std::int64_t arrival_nanos = 0;   // monotonic
  std::int64_t deadline_nanos = 0;  // monotonic; INT64_MAX: none
  // Fires when the client has gone away or its deadline has passed.
  std::shared_ptr<Cancellation> cancellation;
};

// Owned by one job. Moves; the session stays in use while it exists.
class Call {
 public:
  // `answered` is called exactly once, by Answer(); request and response may be gone afterwards.
  Call(const CallServices& services, CallOrigin origin, CallKind kind,
       std::shared_ptr<Session> session, std::int64_t layer, Admission::Ticket ticket,
       Answered answered);
  Call(Call&&) = default;

  const CallServices& services() const { return *services_; }
  Session& session() const { return *session_; }
  const std::shared_ptr<Session>& session_ptr() const { return session_; }
  EngineKind engine_kind() const { return engine_; }

  // OK, or why the work is not wanted any more: CANCELLED or DEADLINE_EXCEEDED.
  absl::Status StillWanted() const;
  bool cancelled() const { return origin_.cancellation->cancelled(); }

  // Ends a stage that began where the last one ended, at arrival, or at BeginStage().
  void EndStage(Stage stage);
  // Begins a stage anew: the time until now was a wait that the client asked for.
  void BeginStage();

  // Replaces the call's share of an admission.
  void Hold(Admission::Ticket ticket) { ticket_ = std::move(ticket); }

  // Answers. The session is released before `answered` runs.
  void Answer(const absl::Status& status);

 private:
  const CallServices* services_;
  CallOrigin origin_;
  CallKind kind_;
  EngineKind engine_;
  std::int64_t stage_start_nanos_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<Session::Use> use_;
  Admission::Ticket ticket_;
  Answered answered_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_CALL_H_

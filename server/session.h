// One session in memory: its configuration, the published states of its layers, and the order of
// its mutations.
//
// Reading never waits for writing: a reader takes the published state of a layer, which is
// immutable, and computes on that. Mutations (Append, Step) run one at a time in the order in which
// they entered the lane; each ends by publishing new states of all layers it touches at one moment,
// or nothing.
//
// Thread-safe. The mutex is held for bookkeeping only, never while something is computed. Shared
// ownership: the table holds a session while it exists, calls hold it while they run.
#ifndef ATTND_SERVER_SESSION_H_
#define ATTND_SERVER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "engine/layer_stream.h"
#include "engine/message_log.h"
#include "server/admission.h"
#include "server/clock.h"
#include "server/error.h"
#include "server/mutex.h"
#include "server/scheduler.h"
#include "server/session_config.h"
#include "server/store/record.h"

namespace attnd::server {

struct SessionKey {
  std::string tenant;
  std::string id;
  friend auto operator<=>(const SessionKey&, const SessionKey&) = default;
};

using LayerStatePtr = std::shared_ptr<const engine::LayerState>;

// The answer of the last Step of a layer that nothing has changed since.
struct StepAnswer {
  engine::Digest digest;  // of the message
  std::shared_ptr<const v1::StepResponse> response;
};

// What a session holds at one moment.
struct SessionSnapshot {
  std::uint64_t sequence = 0;  // of the last message that was published
  std::vector<LayerStatePtr> layers;
  std::vector<StepAnswer> steps;  // by layer; without a response where there is none
  engine::MessageLog messages;
};

// What names a session beside its key.
struct SessionBirth {
  std::uint64_t generation = 0;  // not 0
  std::uint64_t lineage = 0;     // of its records in the store; not 0
  absl::Time create_time;
};

class Session {
 public:
  // Tenant of all sessions until tenants are configured.
  static constexpr char kDefaultTenant[] = "default";
  // Messages that are remembered for retries.
  static constexpr std::int64_t kRememberedMessages = 128;

  // `flow` names the session to the scheduler. The referenced objects outlive the session. Its
  // memory has been reserved in `budget` by the caller: initial_bytes().
  Session(SessionKey key, SessionPlan plan, const SessionBirth& birth, std::uint64_t flow,
          const Clock& clock, Scheduler& scheduler, StateBudget& budget);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Memory that a session of this plan holds before its first token.
  static std::int64_t initial_bytes(const SessionPlan& plan);

  const SessionKey& key() const { return key_; }
  const std::string& identity() const { return plan_.identity; }
  std::uint64_t generation() const { return birth_.generation; }
  std::uint64_t lineage() const { return birth_.lineage; }
  const ConfigHash& config_hash() const { return config_hash_; }
  v1::Durability durability() const { return plan_.config.durability(); }
  bool ephemeral() const { return durability() == v1::EPHEMERAL; }
  std::int64_t layers() const { return static_cast<std::int64_t>(group_of_layer_.size()); }
  const LayerGroup& group(std::int64_t layer) const {
    return plan_.groups[group_of_layer_[static_cast<std::size_t>(layer)]];
  }
  const engine::Engine& engine(std::int64_t layer) const { return *group(layer).engine; }

  // INVALID_FIELD where there is no such layer.
  absl::Status CheckLayer(std::int64_t layer) const;
  // STALE_GENERATION with the current generation and positions.
  absl::Status CheckGeneration(std::uint64_t generation) const ABSL_LOCKS_EXCLUDED(mutex_);

  // "position.<layer>" of the first 64 layers.
  ErrorMetadata PositionMetadata() const ABSL_LOCKS_EXCLUDED(mutex_);

  LayerStatePtr layer(std::int64_t layer) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::int64_t position(std::int64_t layer) const { return this->layer(layer)->position(); }
  std::int64_t state_bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // The session as clients see it.
  v1::Session Describe() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Changes the mutable fields; null leaves a field as it is.
  void Update(const absl::Duration* time_to_live,
              const google::protobuf::Map<std::string, std::string>* labels)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasLabels(const google::protobuf::Map<std::string, std::string>& labels) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Jobs

  // Where a job begins: see Scheduler::Submit(), RunHereIfIdle() and RunHere().
  enum class Place { kWorker, kHereIfIdle, kHere };

  // Runs or queues a job that only reads, or that holds the lane.
  void Start(std::unique_ptr<Job> job, Place place);

  // Runs a job that mutates, or queues it behind those that entered before. It calls LeaveLane()
  // exactly once, when it has published or given up.
  void EnterLane(std::unique_ptr<Job> job, Place place) ABSL_LOCKS_EXCLUDED(mutex_);
  void LeaveLane() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- For the job that holds the lane

  // What became of a message that does not stand at the current positions: OK for a retry of a
  // remembered one, REPLAY_MISMATCH, or WRONG_POSITION with the current position.
  absl::Status ClassifyRetry(const engine::Message& message) const ABSL_LOCKS_EXCLUDED(mutex_);

  // The answer of a Step that ClassifyRetry recognised, or STEP_REPLAY_EXPIRED.
  absl::StatusOr<std::shared_ptr<const v1::StepResponse>> ReplayStep(
      const engine::Message& message) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Publishes new layer states at one moment and remembers the message; `answer` is a Step's, else
  // null. Returns the message's sequence: 1 for a session's first one, then one more each time.
  // Fails, publishing nothing, where the session was closed meanwhile, or its log is broken.
  absl::StatusOr<std::uint64_t> Publish(std::vector<std::pair<std::int64_t, LayerStatePtr>> states,
                                        engine::Message message,
                                        const std::shared_ptr<const v1::StepResponse>& answer)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // A job that answered from a state has let go of it: what that state kept alone is counted no
  // longer.
  void StateReleased() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Durability

  SessionSnapshot Snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes over what a snapshot holds. Before anybody else knows the session.
  void Restore(SessionSnapshot snapshot) ABSL_LOCKS_EXCLUDED(mutex_);

  // Tokens of a layer that would survive a crash, once a message is answered that ends at
  // `position`: of a LOGGED session all of them, since the answer waits for the log.
  std::int64_t DurableWhenAnswered(std::int64_t layer, std::int64_t position) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether all that was published is durable.
  bool saved() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Messages up to `sequence` are in the log; the last one has these spans.
  void NoteLogged(std::uint64_t sequence, const std::vector<engine::TokenSpan>& spans)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The snapshot is in the store. Mends the log.
  void NoteSaved(const SessionSnapshot& snapshot) ABSL_LOCKS_EXCLUDED(mutex_);
  // A message that was published could not be logged: until the session was saved as a whole
  // nothing more is published, since the log would have a gap.
  void NoteLogBroken(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why nothing is published: the log is broken.
  absl::Status log_status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `run` unless the session was closed, and Close() waits for its end: what `run` hands to
  // the store stands before what whoever closes hands to it. It must not block or call the session.
  bool RunIfOpen(const std::function<void()>& run) const ABSL_LOCKS_EXCLUDED(mutex_);

  // What the store holds of the layers, for the one who saves: nobody else looks at it.
  struct Extent {
    std::vector<std::int64_t> segment_blocks;  // by layer: blocks in segments
    std::vector<std::int64_t> root_positions;  // by layer: position of its root; -1: none
    std::uint64_t sequence = 0;                // of the checkpoint
  };
  Extent& extent() { return extent_; }

  // ---- Waiting for a position

  using WaitId = std::uint64_t;
  // Calls `ready` once: with OK when the layer holds `position` tokens (perhaps at once), or with
  // the reason why that will not happen. It must not block. Returns 0 if `ready` was called at
  // once.
  WaitId WhenPosition(std::int64_t layer, std::int64_t position,
                      std::function<void(const absl::Status&)> ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the wait was still there; `ready` will then not be called.
  bool CancelWait(WaitId id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all waits with `reason`.
  void EndWaits(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Life

  // Held by each call while it runs; an idle session has none.
  class Use {
   public:
    explicit Use(Session& session) : session_(session) {
      session_.uses_.fetch_add(1);
      session_.Touch();
    }
    ~Use() {
      session_.Touch();
      session_.uses_.fetch_sub(1);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Session& session_;
  };

  // The monotonic time at which the session expires if it is not used again; in the future while it
  // is in use.
  std::int64_t ExpiryNanos() const;

  // Ends the session's life: later mutations and waits fail with `reason`. Those that wait are left
  // for EndWaits(), which calls them.
  void Shut(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // Both.
  void Close(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Wait {
    std::int64_t layer = 0;
    std::int64_t position = 0;
    std::function<void(const absl::Status&)> ready;
  };
  // A state that was replaced while a job answers from it: memory that the newest state does not
  // have. What a token left behind when the window moved on is held by every older state, too.
  struct Replaced {
    std::weak_ptr<const engine::LayerState> state;
    std::int64_t own_bytes = 0;   // gone with this state
    std::int64_t left_bytes = 0;  // gone with this state and all before it
  };
  using ReplacedStates = std::list<Replaced>;

  // Takes an element out of `spare` where it needs one.
  void NoteReplaced(std::size_t layer, const LayerStatePtr& old, ReplacedStates& spare)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::int64_t ReplacedBytes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Touch() { last_use_nanos_.store(clock_.MonotonicNanos(), std::memory_order_relaxed); }
  static std::int64_t OwnBytes(const SessionPlan& plan);
  void Account() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionKey key_;
  SessionPlan plan_;  // without labels; not changed after construction
  std::vector<std::size_t> group_of_layer_;
  const SessionBirth birth_;
  const ConfigHash config_hash_;
  const std::uint64_t flow_;
  const Clock& clock_;
  Scheduler& scheduler_;
  StateBudget& budget_;

  const std::int64_t own_bytes_;  // without layers and messages
  std::atomic<std::int64_t> uses_{0};
  std::atomic<std::int64_t> last_use_nanos_;
  std::atomic<std::int64_t> time_to_live_nanos_;
  std::atomic<std::int64_t> bytes_;

  mutable Mutex mutex_;
  std::vector<LayerStatePtr> states_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::int64_t> layer_bytes_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReplacedStates> replaced_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_replaced_{false};
  std::vector<StepAnswer> last_steps_ ABSL_GUARDED_BY(mutex_);
  engine::MessageLog log_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::int64_t> durable_positions_ ABSL_GUARDED_BY(mutex_);
  absl::Status log_status_ ABSL_GUARDED_BY(mutex_);
  Extent extent_;
  google::protobuf::Map<std::string, std::string> labels_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Job>> lane_ ABSL_GUARDED_BY(mutex_);
  bool lane_taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<WaitId, Wait> waits_ ABSL_GUARDED_BY(mutex_);
  WaitId next_wait_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_H_

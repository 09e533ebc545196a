// Fair sharing of the workers: deficit round robin (Shreedhar and Varghese 1995) over tenants, then
// over the sessions of a tenant, then turn by turn over a session's jobs.
//
// A worker takes a job, runs quanta of it until kPrivateNanos have passed, charges the time to
// tenant and session, and puts it back; the session's turn goes on while its credit lasts. So a
// query of one row waits for no more than the quanta under way and its turn, whatever else is
// queued. A job's chains are run by several workers once it has proved longer than kPrivateNanos;
// shorter jobs stay on one worker, which costs no hand-over.
//
// Thread-safe. Submit() never blocks on computing code: the lock is held for bookkeeping only.
// Every submitted job runs to its end; Stop() waits for that.
#ifndef ATTND_SERVER_SCHEDULER_H_
#define ATTND_SERVER_SCHEDULER_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "engine/scratch.h"
#include "server/clock.h"
#include "server/job.h"
#include "server/mutex.h"

namespace attnd::server {

class Scheduler {
 public:
  // Credit of a turn.
  static constexpr std::int64_t kTurnNanos = 1'000'000;
  // How long a worker keeps a job, and a job runs before other workers may join in.
  static constexpr std::int64_t kPrivateNanos = 200'000;
  // After how long the caller of RunHere() goes on, give or take a quantum.
  static constexpr std::int64_t kHereNanos = 500'000;

  // Starts `workers` threads, at least 1. `clock` outlives the scheduler.
  Scheduler(int workers, const Clock& clock);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a job of a session of a tenant. `session` is any number that names it within the
  // process.
  void Submit(const std::string& tenant, std::uint64_t session, std::unique_ptr<Job> job)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs the job here and now, on the calling thread, whatever else is queued, and queues what is
  // left of it after kHereNanos. For jobs that take less time than it takes to hand them over.
  void RunHere(const std::string& tenant, std::uint64_t session, std::unique_ptr<Job> job)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same if no other job is queued or running, otherwise Submit(). For jobs that take less time
  // than waking a worker is worth.
  void RunHereIfIdle(const std::string& tenant, std::uint64_t session, std::unique_ptr<Job> job)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Jobs that were submitted and have not ended.
  std::int64_t jobs() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until all jobs have ended and ends the workers. Jobs may still submit jobs meanwhile;
  // nobody else may.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A job and where its phase stands.
  struct Entry {
    std::unique_ptr<Job> job;
    std::string tenant;
    std::uint64_t session = 0;
    bool in_phase = false;
    std::int64_t chains = 0;           // of the phase
    std::int64_t next_chain = 0;       // the first that never ran
    std::vector<std::int64_t> paused;  // chains that ran and have not ended
    std::int64_t unfinished = 0;       // chains that have not ended
    bool ended = false;                // the job has been destroyed

    // Whether a worker can take it: it has a chain that nobody runs, or its phase is over.
    bool ready() const { return !in_phase || next_chain < chains || !paused.empty(); }
  };
  using EntryPtr = std::shared_ptr<Entry>;

  // Lists, since most flows hold one element and then go: an empty deque takes 600 bytes.
  struct SessionFlow {
    std::list<EntryPtr> ready;
    std::int64_t credit = kTurnNanos;
    std::int64_t running = 0;  // workers on its jobs
    bool idle() const { return ready.empty() && running == 0; }
  };
  struct TenantFlow {
    absl::flat_hash_map<std::uint64_t, SessionFlow> sessions;
    std::list<std::uint64_t> turns;  // sessions with ready jobs
    std::int64_t credit = kTurnNanos;
    std::int64_t running = 0;
    bool idle() const { return sessions.empty(); }
  };

  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  void Enqueue(EntryPtr entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  EntryPtr Pick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const Entry& entry, std::int64_t nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(const std::string& tenant, std::uint64_t session, Entry entry)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::int64_t RunFor(std::int64_t nanos, Entry& entry, engine::Scratch& scratch) const;
  void RunAlone(const EntryPtr& entry, engine::Scratch& scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::int64_t TakeChain(Entry& entry);
  void RunShared(const EntryPtr& entry, std::int64_t chain, engine::Scratch& scratch)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether a sleeping worker is to be woken, once the lock is free, for jobs that wait.
  bool WorkForSleepers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return sleeping_ > 0 && !turns_.empty();
  }

  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar wake_;  // jobs wait, or the last one has ended while stopping
  absl::flat_hash_map<std::string, TenantFlow> tenants_ ABSL_GUARDED_BY(mutex_);
  std::list<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // tenants with ready jobs
  std::int64_t jobs_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;  // workers without a job
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_H_

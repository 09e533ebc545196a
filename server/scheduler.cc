#include "server/scheduler.h"

#include <algorithm>
#include <list>
#include <utility>

#include "engine/gemm.h"

namespace attnd::server {

Scheduler::Scheduler(int workers, const Clock& clock) : clock_(clock) {
  for (int i = 0; i < std::max(workers, 1); ++i) workers_.emplace_back([this] { Work(); });
}

Scheduler::~Scheduler() { Stop(); }

void Scheduler::Queue(const std::string& tenant, std::uint64_t session, Entry entry) {
  auto queued = std::make_shared<Entry>(std::move(entry));
  queued->tenant = tenant;
  queued->session = session;
  bool wake = false;
  {
    MutexLock lock(&mutex_);
    ++jobs_;
    Enqueue(std::move(queued));
    wake = WorkForSleepers();
  }
  // Without the lock, which the woken worker takes first thing.
  if (wake) wake_.Signal();
}

void Scheduler::Submit(const std::string& tenant, std::uint64_t session, std::unique_ptr<Job> job) {
  Entry entry;
  entry.job = std::move(job);
  Queue(tenant, session, std::move(entry));
}

void Scheduler::RunHere(const std::string& tenant, std::uint64_t session,
                        std::unique_ptr<Job> job) {
  thread_local engine::Scratch scratch;
  Entry entry;
  entry.job = std::move(job);
  RunFor(kHereNanos, entry, scratch);
  if (!entry.ended) Queue(tenant, session, std::move(entry));
}

void Scheduler::RunHereIfIdle(const std::string& tenant, std::uint64_t session,
                              std::unique_ptr<Job> job) {
  bool idle = false;
  {
    MutexLock lock(&mutex_);
    idle = jobs_ == 0;
    if (idle) ++jobs_;
  }
  if (!idle) {
    Submit(tenant, session, std::move(job));
    return;
  }
  RunHere(tenant, session, std::move(job));
  MutexLock lock(&mutex_);
  EndJob();
}

std::int64_t Scheduler::jobs() const {
  MutexLock lock(&mutex_);
  return jobs_;
}

void Scheduler::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

namespace {

// Puts a flow in line. One that is in the middle of its turn, because a job of it is running, goes
// on with it while its credit lasts.
template <typename Flow, typename Name>
void Join(std::list<Name>& turns, const Name& name, Flow& flow) {
  if (flow.running > 0 && flow.credit > 0) {
    turns.push_front(name);
  } else {
    if (flow.credit <= 0) flow.credit += Scheduler::kTurnNanos;
    turns.push_back(name);
  }
}

// Whether the first in line has used up its credit; it then gets the next one and goes to the back.
template <typename Flow, typename Name>
bool TurnIsOver(std::list<Name>& turns, Flow& flow) {
  if (flow.credit > 0 || turns.size() == 1) return false;
  flow.credit += Scheduler::kTurnNanos;
  turns.splice(turns.end(), turns, turns.begin());
  return true;
}

}  // namespace

void Scheduler::Enqueue(EntryPtr entry) {
  TenantFlow& tenant = tenants_[entry->tenant];
  SessionFlow& session = tenant.sessions[entry->session];
  if (tenant.turns.empty()) Join(turns_, entry->tenant, tenant);
  if (session.ready.empty()) Join(tenant.turns, entry->session, session);
  session.ready.push_back(std::move(entry));
}

// Takes the next job in turn out of its queue.
Scheduler::EntryPtr Scheduler::Pick() {
  TenantFlow* tenant = &tenants_[turns_.front()];
  while (TurnIsOver(turns_, *tenant)) tenant = &tenants_[turns_.front()];
  SessionFlow* session = &tenant->sessions[tenant->turns.front()];
  while (TurnIsOver(tenant->turns, *session)) session = &tenant->sessions[tenant->turns.front()];
  EntryPtr entry = std::move(session->ready.front());
  session->ready.pop_front();
  if (session->ready.empty()) tenant->turns.pop_front();
  if (tenant->turns.empty()) turns_.pop_front();
  ++session->running;
  ++tenant->running;
  return entry;
}

// A worker gives a job back, or is done with it. Flows that have no job any more are forgotten.
void Scheduler::Leave(const Entry& entry, std::int64_t nanos) {
  // A flow that was alone could use any amount of time; it must not pay for that once it has
  // company.
  const auto charge = [nanos](std::int64_t& credit) {
    credit = std::max(credit - nanos, -kTurnNanos);
  };
  const auto tenant = tenants_.find(entry.tenant);
  const auto session = tenant->second.sessions.find(entry.session);
  charge(tenant->second.credit);
  charge(session->second.credit);
  --tenant->second.running;
  --session->second.running;
  if (session->second.idle()) tenant->second.sessions.erase(session);
  if (tenant->second.idle()) tenants_.erase(tenant);
}

void Scheduler::Work() {
  // Without this the first request of each worker would wait for oneDNN to generate its kernels.
  // A failure shows again in the first product, where it has a request to be reported to.
  engine::GemmInitThread().IgnoreError();
  engine::Scratch scratch;
  while (true) {
    EntryPtr entry;
    std::int64_t chain = -1;
    bool wake = false;
    {
      MutexLock lock(&mutex_);
      while (turns_.empty()) {
        if (stopping_ && jobs_ == 0) return;
        ++sleeping_;
        wake_.Wait(&mutex_);
        --sleeping_;
      }
      entry = Pick();
      if (entry->in_phase) {
        chain = TakeChain(*entry);
        if (entry->ready()) Enqueue(entry);
      }
      wake = WorkForSleepers();
    }
    if (wake) wake_.Signal();
    if (chain < 0) {
      RunAlone(entry, scratch);
    } else {
      RunShared(entry, chain, scratch);
    }
    // Linux lets a thread that computes run to the end of its time slice, 3 to 4 ms, before one
    // that has just been woken, as gRPC's threads are: with every core computing, short calls would
    // wait for that. One system call per quantum bounds it to the quantum.
    std::this_thread::yield();
  }
}

std::int64_t Scheduler::TakeChain(Entry& entry) {
  // A chain that has begun goes first: what it reads may still be in this worker's cache.
  if (!entry.paused.empty()) {
    const std::int64_t chain = entry.paused.back();
    entry.paused.pop_back();
    return chain;
  }
  return entry.next_chain++;
}

// Runs a job that nobody else runs until `nanos` have passed or it has ended. Returns the time that
// it took.
std::int64_t Scheduler::RunFor(std::int64_t nanos, Entry& entry, engine::Scratch& scratch) const {
  const std::int64_t start = clock_.MonotonicNanos();
  std::int64_t elapsed = 0;
  while (elapsed < nanos && !entry.ended) {
    if (entry.in_phase) {
      const std::int64_t chain = TakeChain(entry);
      if (!entry.job->RunChain(chain, scratch)) {
        entry.paused.push_back(chain);
      } else {
        entry.in_phase = --entry.unfinished > 0;
      }
    } else {
      switch (entry.job->Advance(scratch)) {
        case Job::Next::kEnd:
          entry.ended = true;
          break;
        case Job::Next::kAdvance:
          break;
        case Job::Next::kChains:
          entry.in_phase = true;
          entry.chains = entry.unfinished = entry.job->chains();
          entry.next_chain = 0;
          break;
      }
    }
    elapsed = clock_.MonotonicNanos() - start;
  }
  // Destroyed outside the lock: it may free much memory.
  if (entry.ended) entry.job = nullptr;
  return elapsed;
}

void Scheduler::RunAlone(const EntryPtr& entry, engine::Scratch& scratch) {
  const std::int64_t elapsed = RunFor(kPrivateNanos, *entry, scratch);
  MutexLock lock(&mutex_);
  if (entry->ended) {
    EndJob();
  } else {
    Enqueue(entry);
  }
  Leave(*entry, elapsed);
}

void Scheduler::RunShared(const EntryPtr& entry, std::int64_t chain, engine::Scratch& scratch) {
  const std::int64_t start = clock_.MonotonicNanos();
  const bool ended = entry->job->RunChain(chain, scratch);
  const std::int64_t elapsed = clock_.MonotonicNanos() - start;
  MutexLock lock(&mutex_);
  const bool was_queued = entry->ready();
  if (ended) {
    --entry->unfinished;
    entry->in_phase = entry->unfinished > 0;
  } else {
    entry->paused.push_back(chain);
  }
  if (!was_queued && entry->ready()) Enqueue(entry);
  Leave(*entry, elapsed);
}

void Scheduler::EndJob() {
  --jobs_;
  if (stopping_ && jobs_ == 0) wake_.SignalAll();
}

}  // namespace attnd::server

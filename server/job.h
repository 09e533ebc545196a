// A piece of work that the scheduler runs in quanta of about a millisecond at most.
//
// A job alternates between Advance(), one call at a time, and a phase of independent chains. Each
// chain is run to its end by repeated RunChain() calls, one after another; different chains may run
// on different workers at the same time. After a phase's last chain Advance() is called again.
// Calls of different threads are ordered by the scheduler's lock, so a job needs no lock of its own
// for what only Advance() writes.
//
// A job that returned kEnd is destroyed by whoever ran it. A job answers its client exactly once,
// before it ends.
#ifndef ATTND_SERVER_JOB_H_
#define ATTND_SERVER_JOB_H_

#include <cstdint>

#include "engine/scratch.h"

namespace attnd::server {

class Job {
 public:
  enum class Next { kAdvance, kChains, kEnd };

  virtual ~Job() = default;
  virtual Next Advance(engine::Scratch& scratch) = 0;
  // Chains of the phase that Advance has opened by returning kChains; at least 1.
  virtual std::int64_t chains() const { return 0; }
  // Runs one quantum of a chain. True when the chain has ended.
  virtual bool RunChain(std::int64_t /*chain*/, engine::Scratch& /*scratch*/) { return true; }
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_JOB_H_

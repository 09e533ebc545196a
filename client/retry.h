// When and how often a call is repeated.
//
// Every call of the contract can be repeated safely: reads change nothing, CreateSession carries
// a client-made id, PutFeatureMap names its content, FlushSession finds written what it has written
// before, and Append and Step carry their position, so that the server recognises a message it has
// applied before. Repeated are:
//   UNAVAILABLE                      the server was not reached, the answer was lost, or the
//   server's
//                                    store fails for now (STORE_UNAVAILABLE);
//   DEADLINE_EXCEEDED of an attempt  while the call's own deadline lies ahead, with more time for
//                                    the next attempt;
//   RESOURCE_EXHAUSTED + RetryInfo   a limit that passes by itself.
// Everything else is the caller's to see at once.
#ifndef ATTND_CLIENT_RETRY_H_
#define ATTND_CLIENT_RETRY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/clock.h"

namespace attnd::client {

struct RetryPolicy {
  // Attempts that may fail by anything but their own deadline; 1 means no retry, and that the only
  // attempt gets all the time there is.
  int max_attempts = 8;
  // Pause before the second attempt; doubled for each further one. Each pause is multiplied by
  // a random number between 1/2 and 1, and is never shorter than what the server asks for.
  absl::Duration initial_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(5);
  // Time for the first attempt, which notices a server that has stopped answering. Doubled after
  // each attempt that it ended, so that a call that needs longer succeeds within its deadline.
  absl::Duration attempt_timeout = absl::Seconds(30);
};

// True if the same call may succeed later without any change.
bool IsRetryable(const absl::Status& status);

// Runs `attempt` until it succeeds, fails for good, or policy or deadline end it. `attempt`
// receives the time it may take. `uniform` draws from [0, 1). A pause that would outlast the
// deadline is not begun. Returns the last attempt's status; the message then says how many attempts
// were made.
absl::Status RunWithRetries(const RetryPolicy& policy, absl::Time deadline, Clock& clock,
                            const std::function<double()>& uniform,
                            const std::function<absl::Status(absl::Duration)>& attempt);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_RETRY_H_

#include "client/retry.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace attnd::client {

bool IsRetryable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    case absl::StatusCode::kResourceExhausted:
      return RetryDelayOf(status).has_value();
    default:
      return false;
  }
}

absl::Status RunWithRetries(const RetryPolicy& policy, absl::Time deadline, Clock& clock,
                            const std::function<double()>& uniform,
                            const std::function<absl::Status(absl::Duration)>& attempt) {
  absl::Duration backoff = policy.initial_backoff;
  absl::Duration attempt_timeout =
      policy.max_attempts > 1 ? policy.attempt_timeout : absl::InfiniteDuration();
  int counted = 0;
  for (int number = 1;; ++number) {
    const absl::Duration left = deadline - clock.Now();
    absl::Status status = attempt(std::min(left, attempt_timeout));
    if (status.ok() || !IsRetryable(status)) return status;
    if (policy.max_attempts > 1 && absl::IsDeadlineExceeded(status)) {
      attempt_timeout *= 2;
    } else {
      ++counted;
    }

    absl::Duration pause = backoff * (0.5 + 0.5 * uniform());
    pause = std::max(pause, RetryDelayOf(status).value_or(absl::ZeroDuration()));
    if (counted >= policy.max_attempts || clock.Now() + pause >= deadline) {
      if (number == 1) return status;
      return WithMessage(status, absl::StrCat(status.message(), " (after ", number, " attempts)"));
    }
    clock.Sleep(pause);
    backoff = std::min(backoff * 2, policy.max_backoff);
  }
}

}  // namespace attnd::client

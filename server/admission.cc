#include "server/admission.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/error.h"

namespace attnd::server {
namespace {
// A full queue of millisecond quanta drains in about this time.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
}  // namespace

absl::StatusOr<Admission::Ticket> Admission::Admit(std::int64_t bytes) {
  if (requests_.fetch_add(1, std::memory_order_relaxed) >= max_requests_) {
    requests_.fetch_sub(1, std::memory_order_relaxed);
    return RetryableError(
        v1::QUEUE_FULL,
        absl::StrCat("the server holds max_queued_requests = ", max_requests_, " requests"),
        kRetryDelay);
  }
  const std::int64_t held = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (held > 0 && held + bytes > max_bytes_) {
    Release(bytes);
    return RetryableError(
        v1::INFLIGHT_BYTES,
        absl::StrCat("requests and answers under way hold ", held, " bytes; with this one's ",
                     bytes, " they would exceed max_inflight_bytes = ", max_bytes_),
        kRetryDelay);
  }
  return Ticket(this, bytes);
}

void Admission::Release(std::int64_t bytes) {
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  requests_.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status StateBudget::Reserve(std::int64_t bytes) {
  const std::int64_t held = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (bytes > 0 && held + bytes > limit_) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    return OutOfMemory(absl::StrCat("sessions hold ", held, " bytes; ", bytes,
                                    " more would exceed max_state_bytes = ", limit_));
  }
  return absl::OkStatus();
}

}  // namespace attnd::server

// Admission of messages by count and by bytes, before they are queued. A refusal is immediate.
//
// Thread-safe and lock-free. A Ticket holds its share until it is destroyed and must not outlive
// the Admission.
#ifndef ATTND_SERVER_ADMISSION_H_
#define ATTND_SERVER_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace attnd::server {

class Admission {
 public:
  Admission(std::int64_t max_requests, std::int64_t max_bytes)
      : max_requests_(max_requests), max_bytes_(max_bytes) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : admission_(std::exchange(other.admission_, nullptr)), bytes_(other.bytes_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Ticket() {
      if (admission_ != nullptr) admission_->Release(bytes_);
    }
    // Gives back all but `bytes`.
    void ShrinkTo(std::int64_t bytes) {
      if (admission_ == nullptr || bytes >= bytes_) return;
      admission_->bytes_.fetch_sub(bytes_ - bytes, std::memory_order_relaxed);
      bytes_ = bytes;
    }

   private:
    friend class Admission;
    Ticket(Admission* admission, std::int64_t bytes) : admission_(admission), bytes_(bytes) {}

    Admission* admission_ = nullptr;
    std::int64_t bytes_ = 0;
  };

  // One request whose message and answer take `bytes`. RESOURCE_EXHAUSTED, QUEUE_FULL or
  // INFLIGHT_BYTES. A single message larger than the whole limit is admitted when nothing else is
  // held, so that a limit below max_message_bytes does not make calls impossible.
  absl::StatusOr<Ticket> Admit(std::int64_t bytes);

  std::int64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  std::int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  void Release(std::int64_t bytes);

  const std::int64_t max_requests_;
  const std::int64_t max_bytes_;
  std::atomic<std::int64_t> requests_{0};
  std::atomic<std::int64_t> bytes_{0};
};

// Memory of all sessions together. Thread-safe and lock-free.
class StateBudget {
 public:
  explicit StateBudget(std::int64_t limit) : limit_(limit) {}

  // Adds `bytes` if that stays within the limit, else RESOURCE_EXHAUSTED STATE_BYTES.
  absl::Status Reserve(std::int64_t bytes);
  // Adds or takes away bytes that are held already.
  void Adjust(std::int64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  std::int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const std::int64_t limit_;
  std::atomic<std::int64_t> used_{0};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_ADMISSION_H_

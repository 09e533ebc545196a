// Who may change a layer, and at which position the next message goes.
//
// A layer has one writer at a time: a unary call for as long as it runs (all its messages), or
// a stream for as long as it has unanswered messages for the layer. Invariants, per layer:
//   sent >= acknowledged; sent - acknowledged are the rows of unanswered messages of a stream;
//   no mutation is sent while a Step is unanswered, so that the Step can always be replayed;
//   when the last unanswered message is answered, sent returns to acknowledged: what failed is not
//   counted;
//   durable never falls: answers may be looked at in another order than the server gave them.
// Positions go wrong only by another writer of the session, which the server then refuses.
//
// Thread-safe. Waiting calls end with DEADLINE_EXCEEDED.
#ifndef ATTND_CLIENT_LEDGER_H_
#define ATTND_CLIENT_LEDGER_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/mutex.h"

namespace attnd::client {

class Ledger {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // `durable_positions`: by layer, or empty where nothing is durable.
  explicit Ledger(std::vector<std::int64_t> positions,
                  std::vector<std::int64_t> durable_positions = {});

  std::int64_t layers() const { return layer_count_; }

  // The position that the server has acknowledged. Requires 0 <= layer < layers().
  std::int64_t Acknowledged(std::int64_t layer) const;
  void SetAcknowledged(std::int64_t layer, std::int64_t position);

  // Tokens that would survive a crash, as far as the server has said.
  std::int64_t Durable(std::int64_t layer) const;
  void RaiseDurable(std::int64_t layer, std::int64_t position);

  // The turn of a unary call, of all `layers` or none. Layers are taken in the order of their
  // numbers, so two callers cannot wait for each other.
  absl::Status Acquire(std::span<const std::int64_t> layers, const void* owner, Deadline deadline);
  void Release(std::span<const std::int64_t> layers);

  // Announces a message of a stream with `rows` new tokens and returns its position.
  absl::StatusOr<std::int64_t> BeginMessage(std::int64_t layer, const void* owner,
                                            std::int64_t rows, bool is_step, Deadline deadline);
  // Its answer: the position after it, or nothing if it failed.
  void EndMessage(std::int64_t layer, std::optional<std::int64_t> position);
  // Instead of an answer: the newest message of the layer, of `rows` tokens, was not sent. Its
  // position goes to the next one.
  void AbandonMessage(std::int64_t layer, std::int64_t rows);

 private:
  struct Layer {
    std::int64_t acknowledged = 0;
    std::int64_t durable = 0;
    std::int64_t sent = 0;
    std::int64_t unanswered = 0;
    bool step_unanswered = false;
    const void* owner = nullptr;
  };

  Layer& At(std::int64_t layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Layer& At(std::int64_t layer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a message has ended.
  void FreeIfAnswered(Layer& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::int64_t layer_count_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Layer> layers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_LEDGER_H_

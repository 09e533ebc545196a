// The moving parts of a Stream: window, order of sends, reader thread, end.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "client/stream.h"
#include "client/transport.h"

namespace attnd::client {

absl::Status Stream::CheckOpen(std::span<const Change> changes) {
  MutexLock lock(mutex_);
  if (ended_) {
    return end_status_.ok() ? absl::FailedPreconditionError("the stream has ended") : end_status_;
  }
  for (const Change& change : changes) {
    if (failed_layers_.count(change.layer) > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("an earlier message to layer ", change.layer,
                       " failed; call Resume(layer) and send on from its acknowledged position"));
    }
  }
  return absl::OkStatus();
}

absl::Status Stream::TakeWindow(std::int64_t bytes, Ledger::Deadline deadline) {
  MutexLock lock(mutex_);
  while (!ended_ && window_messages_ > 0 &&
         (window_messages_ >= options_.max_unanswered ||
          window_bytes_ + bytes > options_.max_unanswered_bytes)) {
    if (!changed_.WaitUntil(mutex_, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the stream's window stayed full: ", Standing()));
    }
  }
  ++window_messages_;
  window_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Stream::Send(
    std::span<const Change> changes, bool is_step, std::int64_t bytes,
    const std::function<void(std::span<const std::int64_t>, v1::StreamRequest*)>& fill,
    std::function<void(absl::StatusOr<v1::StreamResponse>)> done) {
  if (std::this_thread::get_id() == reader_id_) {
    return absl::FailedPreconditionError("a callback of a stream must not send on the same stream");
  }
  const Ledger::Deadline deadline =
      transport_->WaitDeadline(transport_->DeadlineFor(options_.send));
  MutexLock send_lock(send_mutex_);
  if (writes_done_) return absl::FailedPreconditionError("the stream is finished");
  // Also before the waits below, which a stream that has ended would only prolong.
  if (const absl::Status status = CheckOpen(changes); !status.ok()) return status;
  if (const absl::Status status = TakeWindow(bytes, deadline); !status.ok()) return status;

  // In the order of the layers, so that two streams cannot wait for each other.
  std::vector<std::size_t> order(changes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return changes[a].layer < changes[b].layer; });
  std::vector<std::int64_t> positions(changes.size());
  std::size_t begun = 0;
  absl::Status status = absl::OkStatus();
  while (status.ok() && begun < order.size()) {
    const Change& change = changes[order[begun]];
    const auto position =
        session_.ledger->BeginMessage(change.layer, this, change.rows, is_step, deadline);
    status = position.status();
    if (position.ok()) positions[order[begun++]] = *position;
  }
  // After the positions are fixed: a failure before that moment shows here, a later one makes the
  // server refuse the position.
  if (status.ok()) status = CheckOpen(changes);
  v1::StreamRequest request;
  if (status.ok()) {
    request.set_id(next_id_++);
    fill(positions, &request);
    Pending pending{request.id(), bytes, {}, std::move(done)};
    for (const Change& change : changes) pending.layers.push_back(change.layer);
    MutexLock lock(mutex_);
    if (ended_) {
      status = absl::FailedPreconditionError("the stream has ended");
    } else {
      pending_.push_back(std::move(pending));
    }
  }
  if (!status.ok()) {
    while (begun > 0) {
      const Change& change = changes[order[--begun]];
      session_.ledger->AbandonMessage(change.layer, change.rows);
    }
    MutexLock lock(mutex_);
    --window_messages_;
    window_bytes_ -= bytes;
    changed_.NotifyAll();
    return status;
  }
  // A write fails only when the stream has ended; the reader then settles what is pending.
  call_->Write(request);
  return absl::OkStatus();
}

void Stream::ReadAnswers() {
  v1::StreamResponse answer;
  absl::Status broken = absl::OkStatus();
  while (broken.ok() && call_->Read(&answer)) {
    std::optional<std::uint64_t> expected;
    {
      MutexLock lock(mutex_);
      if (!pending_.empty()) expected = pending_.front().id;
    }
    if (answer.id() != expected) {
      broken = absl::InternalError(
          absl::StrCat("the server answered message ", answer.id(), " of the stream, expected was ",
                       expected.has_value() ? absl::StrCat(*expected) : "none"));
      context_.TryCancel();
      break;
    }
    const absl::Status status = FromRpc(answer.status());
    if (status.ok()) {
      Settle(std::move(answer));
    } else {
      Settle(status);
    }
  }
  const absl::Status end = FromGrpc(call_->Finish());
  EndStream(broken.ok() ? end : broken);
}

void Stream::Settle(absl::StatusOr<v1::StreamResponse> answer) {
  Pending pending;
  {
    MutexLock lock(mutex_);
    pending = std::move(pending_.front());
    pending_.pop_front();
    // A failure of the message alone is an answer too.
    if (!ended_) last_answered_ = pending.id;
    if (!answer.ok()) {
      failed_layers_.insert(pending.layers.begin(), pending.layers.end());
    }
  }
  for (const std::int64_t layer : pending.layers) {
    std::optional<std::int64_t> position;
    std::int64_t durable = 0;
    if (answer.ok() && answer->has_step()) {
      position = answer->step().position();
      durable = answer->step().durable_position();
    }
    if (answer.ok() && answer->has_append()) {
      for (const v1::LayerPosition& entry : answer->append().positions()) {
        if (entry.layer() != layer) continue;
        position = entry.position();
        durable = entry.durable_position();
      }
    }
    session_.ledger->RaiseDurable(layer, durable);
    session_.ledger->EndMessage(layer, position);
  }
  pending.done(std::move(answer));
  MutexLock lock(mutex_);
  --window_messages_;
  window_bytes_ -= pending.bytes;
  changed_.NotifyAll();
}

void Stream::EndStream(absl::Status status) {
  std::size_t unanswered = 0;
  {
    MutexLock lock(mutex_);
    unanswered = pending_.size();
    if (status.ok() && unanswered > 0) {
      status = absl::UnavailableError("the server ended the stream");
    }
    if (!status.ok()) {
      status = WithMessage(status, absl::StrCat(status.message(), " (", Standing(), ")"));
    }
    ended_ = true;
    end_status_ = status;
    changed_.NotifyAll();
  }
  for (; unanswered > 0; --unanswered) Settle(status);
}

std::string Stream::Standing() const {
  return absl::StrCat("stream: last answered message ", last_answered_, ", ", pending_.size(),
                      " unanswered");
}

absl::Status Stream::Resume(std::int64_t layer) {
  if (std::this_thread::get_id() == reader_id_) {
    return absl::FailedPreconditionError("a callback of a stream must not resume the stream");
  }
  if (layer < 0 || layer >= session_.ledger->layers()) {
    return absl::InvalidArgumentError(absl::StrCat("layer: ", layer, " is not in the session"));
  }
  const Ledger::Deadline deadline =
      transport_->WaitDeadline(transport_->DeadlineFor(options_.send));
  // No send may slip in between the last answer and the end of the refusal.
  MutexLock send_lock(send_mutex_);
  MutexLock lock(mutex_);
  while (!pending_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("answers are missing: ", Standing()));
    }
  }
  failed_layers_.erase(layer);
  return absl::OkStatus();
}

absl::Status Stream::Finish() {
  if (std::this_thread::get_id() == reader_id_) {
    return absl::FailedPreconditionError("a callback of a stream must not finish the stream");
  }
  {
    MutexLock send_lock(send_mutex_);
    if (!writes_done_) {
      writes_done_ = true;
      call_->WritesDone();
    }
    if (reader_.joinable()) reader_.join();
  }
  MutexLock lock(mutex_);
  return end_status_;
}

void Stream::Cancel() { context_.TryCancel(); }

}  // namespace attnd::client

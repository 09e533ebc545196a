#include "server/append_job.h"

#include <algorithm>
#include <utility>

namespace attnd::server {
namespace {

std::vector<engine::TokenSpan> SpansOf(const std::vector<LayerSlice>& slices) {
  std::vector<engine::TokenSpan> spans;
  for (const LayerSlice& slice : slices) spans.push_back(slice.span);
  return spans;
}

}  // namespace

AppendJob::AppendJob(Call call, const v1::AppendRequest& request, std::vector<LayerSlice> slices,
                     std::int64_t reserved, v1::AppendResponse& response)
    : MessageJob(std::move(call)),
      request_(request),
      response_(response),
      spans_(SpansOf(slices)),
      mutation_(std::make_unique<Mutation>(call_.session(), engine::MessageKind::kAppend,
                                           std::move(slices), call_.services().budget, reserved)) {}

absl::StatusOr<Job::Next> AppendJob::Continue(engine::Scratch& scratch) {
  if (!started_) {
    started_ = true;
    EnterStage(Stage::kCompute);
    applies_ = mutation_->Applies();
  }
  if (!all_taken_) return TakeTokens(scratch);
  if (applies_) {
    absl::Status checked = mutation_->CheckTail(slice_, scratch);
    if (!checked.ok()) return checked;
    if (++slice_ < mutation_->slices()) return Next::kAdvance;
  }
  // Before the end, so that nothing which takes memory comes after it.
  WritePositions();
  absl::Status ended = End();
  if (!ended.ok()) return ended;
  EnterStage(Stage::kEncode);
  return Next::kEnd;
}

// Applies or digests one quantum of tokens, or prepares for it.
absl::StatusOr<Job::Next> AppendJob::TakeTokens(engine::Scratch& scratch) {
  const std::int64_t left = mutation_->count(slice_) - mutation_->done(slice_);
  const std::int64_t now = std::min(left, mutation_->QuantumTokens(slice_));
  if (applies_ && !mutation_->PrepareSeal(slice_, now, scratch)) return Next::kAdvance;
  absl::Status taken =
      applies_ ? mutation_->Apply(slice_, now, scratch) : mutation_->Digest(slice_, now, scratch);
  if (!taken.ok()) return taken;
  if (now == left && ++slice_ == mutation_->slices()) {
    all_taken_ = true;
    slice_ = 0;
  }
  return Next::kAdvance;
}

// Publishes the tokens, or finds them there.
absl::Status AppendJob::End() {
  engine::Message message = mutation_->Message({});
  if (!applies_) {
    response_.set_replayed(true);
    return call_.session().ClassifyRetry(message);
  }
  logged_.digest = message.digest;
  absl::StatusOr<std::uint64_t> published = mutation_->Publish(std::move(message), nullptr);
  if (!published.ok()) return published.status();
  logged_.sequence = *published;
  for (const engine::TokenSpan& span : spans_) {
    call_.services().metrics.AddTokens(call_.session().group(span.layer).kind, span.count);
  }
  return absl::OkStatus();
}

std::optional<LogEntry> AppendJob::Logged() {
  LogEntry entry = {.sequence = logged_.sequence, .record = {}, .spans = spans_};
  if (applies_) entry.record = EncodeLogRecord(logged_, request_);
  return entry;
}

void AppendJob::Release(Session& session) {
  mutation_ = nullptr;
  session.LeaveLane();
}

void AppendJob::WritePositions() {
  for (const engine::TokenSpan& span : spans_) {
    v1::LayerPosition& position = *response_.add_positions();
    position.set_layer(static_cast<std::int32_t>(span.layer));
    position.set_position(span.position + span.count);
    position.set_durable_position(
        call_.session().DurableWhenAnswered(span.layer, position.position()));
  }
}

}  // namespace attnd::server

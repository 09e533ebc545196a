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

AppendJob::AppendJob(Call call, std::vector<LayerSlice> slices, std::int64_t reserved,
                     v1::AppendResponse& response)
    : call_(std::move(call)),
      response_(response),
      spans_(SpansOf(slices)),
      mutation_(std::make_unique<Mutation>(call_.session(), engine::MessageKind::kAppend,
                                           std::move(slices), call_.services().budget, reserved)) {}

Job::Next AppendJob::Advance(engine::Scratch& scratch) {
  absl::StatusOr<bool> done = Continue(scratch);
  if (done.ok() && !*done) return Next::kAdvance;
  if (done.ok()) WritePositions();
  mutation_ = nullptr;
  call_.session().LeaveLane();
  call_.EndStage(Stage::kEncode);
  call_.Answer(done.status());
  return Next::kEnd;
}

// One quantum. True when the tokens are published or known to be there.
absl::StatusOr<bool> AppendJob::Continue(engine::Scratch& scratch) {
  absl::Status wanted = call_.StillWanted();
  if (!wanted.ok()) return wanted;
  if (!started_) {
    started_ = true;
    call_.EndStage(Stage::kQueue);
    applies_ = mutation_->Applies();
  }
  const std::int64_t left = mutation_->count(slice_) - mutation_->done(slice_);
  const std::int64_t now = std::min(left, mutation_->QuantumTokens(slice_));
  absl::Status taken =
      applies_ ? mutation_->Apply(slice_, now, scratch) : mutation_->Digest(slice_, now, scratch);
  if (!taken.ok()) return taken;
  if (now < left) return false;
  if (++slice_ < mutation_->slices()) return false;

  engine::Message message = mutation_->Message({});
  if (!applies_) {
    absl::Status retry = call_.session().ClassifyRetry(message);
    if (!retry.ok()) return retry;
    response_.set_replayed(true);
    return true;
  }
  absl::Status published = mutation_->CheckTails(scratch);
  if (published.ok()) published = mutation_->Publish(std::move(message), nullptr);
  if (!published.ok()) return published;
  call_.EndStage(Stage::kCompute);
  for (const engine::TokenSpan& span : spans_) {
    call_.services().metrics.AddTokens(call_.session().group(span.layer).kind, span.count);
  }
  return true;
}

void AppendJob::WritePositions() {
  for (const engine::TokenSpan& span : spans_) {
    v1::LayerPosition& position = *response_.add_positions();
    position.set_layer(static_cast<std::int32_t>(span.layer));
    position.set_position(span.position + span.count);
  }
}

}  // namespace attnd::server

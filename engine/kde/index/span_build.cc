#include "engine/kde/index/span_build.h"

#include <new>
#include <utility>

namespace attnd::engine {

SpanBuild::SpanBuild(const BlockLayout& layout, SpanInput input, float scale)
    : layout_(layout), input_(std::move(input)), scale_(scale) {}

std::int64_t SpanBuild::Bytes(const BlockLayout& layout, const SpanBounds& span) {
  return static_cast<std::int64_t>(sizeof(SpanBuild) + sizeof(HeadBuild)) +
         IndexSpan::Bytes(layout, span) + HeadBuild::WorkBytes(layout, span.tokens);
}

bool SpanBuild::TryStep(double share, Scratch& scratch) {
  if (!result_) {
    result_ = std::make_shared<IndexSpan>();
    result_->span = input_.span;
  }
  const auto heads = static_cast<std::size_t>(layout_.kv_heads);
  const std::size_t head = result_->heads.size();
  if (head == heads) return true;
  if (!head_) {
    head_ = std::make_unique<HeadBuild>(layout_, input_, static_cast<std::int64_t>(head), scale_);
  }
  const double done = static_cast<double>(head) + head_->progress();
  if (done >= share * static_cast<double>(heads) && share < 1.0) return true;
  head_->Step(scratch);
  if (head_->done()) {
    result_->heads.push_back(head_->Take());
    head_.reset();
  }
  return false;
}

void SpanBuild::Advance(double share, Scratch& scratch) {
  while (!Step(share, scratch)) {
  }
}

bool SpanBuild::Step(double share, Scratch& scratch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    return TryStep(share, scratch);
  } catch (const std::bad_alloc&) {
    head_.reset();
    result_.reset();
    throw;
  }
}

std::shared_ptr<const IndexSpan> SpanBuild::Finish(Scratch& scratch) {
  Advance(1.0, scratch);
  const std::lock_guard<std::mutex> lock(mutex_);
  return result_;
}

}  // namespace attnd::engine

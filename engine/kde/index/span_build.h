// The job that turns a span's tokens into its index, shared by all states that wait for it: the
// published one, its forks, and drafts that may be dropped.
//
// Each of them does its share when it seals a block, and the one that makes the span visible does
// what is left; what another has done is not done again. The result is a pure function of the
// tokens and immutable.
//
// Thread-safe. Where memory runs out std::bad_alloc is thrown and the job starts over at the next
// call.
#ifndef ATTND_ENGINE_KDE_INDEX_SPAN_BUILD_H_
#define ATTND_ENGINE_KDE_INDEX_SPAN_BUILD_H_

#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/block.h"
#include "engine/kde/index/head_build.h"
#include "engine/kde/index/index_span.h"
#include "engine/scratch.h"

namespace attnd::engine {

class SpanBuild {
 public:
  // `scale`: of query rows.
  SpanBuild(const BlockLayout& layout, SpanInput input, float scale);

  const SpanBounds& span() const { return input_.span; }
  const SpanInput& input() const { return input_; }

  // Does a step (HeadBuild::Step) if less than `share`, 0 to 1, of the job is done. True when so
  // much was done before.
  bool Step(double share, Scratch& scratch);

  // Works until `share` of the job is done.
  void Advance(double share, Scratch& scratch);

  // Does what is left. The same object for every caller.
  std::shared_ptr<const IndexSpan> Finish(Scratch& scratch);

  // Memory that the job takes, its result included, without its input.
  static std::int64_t Bytes(const BlockLayout& layout, const SpanBounds& span);

 private:
  bool TryStep(double share, Scratch& scratch);

  const BlockLayout layout_;
  const SpanInput input_;
  const float scale_;
  std::mutex mutex_;  // of all below
  std::unique_ptr<HeadBuild> head_;
  std::shared_ptr<IndexSpan> result_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_SPAN_BUILD_H_

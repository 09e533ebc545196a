// What Append and Step share: tokens checked on arrival, memory reserved, the position's verdict,
// drafts, and one publish at the end.
//
// Belongs to one job; used by one thread at a time. The job holds the session's
// lane, so that nobody else changes the layers meanwhile.
#ifndef ATTND_SERVER_MUTATION_H_
#define ATTND_SERVER_MUTATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "engine/layer_stream.h"
#include "engine/message_log.h"
#include "engine/token_rows.h"
#include "server/admission.h"
#include "server/session.h"

namespace attnd::server {

// Tokens of one layer as they arrived. Borrows the message.
struct LayerSlice {
  engine::TokenSpan span;
  engine::TokenBatch batch;
};

// Checks layer, position, shapes and mask of the tokens of a message: INVALID_FIELD or BAD_TENSOR
// with the field's name, which begins with `field`.
absl::StatusOr<LayerSlice> CheckTokens(const Session& session, const v1::LayerTokens& tokens,
                                       const std::string& field);

class Mutation {
 public:
  // The session and the memory behind the slices outlive the mutation. `reserved` bytes of `budget`
  // are given back at its end; by then the session has accounted for what it holds.
  Mutation(Session& session, engine::MessageKind kind, std::vector<LayerSlice> slices,
           StateBudget& budget, std::int64_t reserved);
  ~Mutation();
  Mutation(const Mutation&) = delete;
  Mutation& operator=(const Mutation&) = delete;

  // Memory that these tokens may take.
  static std::int64_t EstimateBytes(const Session& session, const std::vector<LayerSlice>& slices);

  // Whether the tokens stand at the current positions, so that they are to be applied; otherwise
  // the message is a retry or a mistake, and Digest() followed by Session::ClassifyRetry() tells
  // which.
  bool Applies() const;

  std::size_t slices() const { return slices_.size(); }
  std::int64_t count(std::size_t slice) const { return slices_[slice].span.count; }
  std::int64_t done(std::size_t slice) const { return digested_[slice]; }
  // The draft of a slice's layer; begun from the published state when first asked for.
  engine::LayerDraft& draft(std::size_t slice);

  // Does a piece of what applying the next `count` tokens, at most 64, will need: a quantum. True
  // when nothing is left; see LayerDraft::PrepareSeal.
  bool PrepareSeal(std::size_t slice, std::int64_t count, engine::Scratch& scratch);

  // Applies the next `count` tokens of a slice to its draft.
  absl::Status Apply(std::size_t slice, std::int64_t count, engine::Scratch& scratch);
  // Only digests the next `count` tokens of a slice.
  absl::Status Digest(std::size_t slice, std::int64_t count, engine::Scratch& scratch);

  // Checks that the open block of a slice's layer can be sealed later; before Publish() for each.
  absl::Status CheckTail(std::size_t slice, engine::Scratch& scratch) const;

  // The message, once all tokens were applied or digested. `extra` is what its digest covers
  // besides the tokens.
  engine::Message Message(const engine::Digest& extra) const;

  // Publishes the drafts, all of which have been begun; see Session::Publish().
  absl::StatusOr<std::uint64_t> Publish(engine::Message message,
                                        const std::shared_ptr<const v1::StepResponse>& answer);

  // Tokens of a slice that make a quantum of about a millisecond at most, for usual sizes.
  std::int64_t QuantumTokens(std::size_t slice) const;

 private:
  // An engine's failure with the layer it is about.
  absl::Status LayerError(std::size_t slice, const absl::Status& status) const;

  Session& session_;
  const engine::MessageKind kind_;
  const std::vector<LayerSlice> slices_;
  StateBudget& budget_;
  const std::int64_t reserved_;
  std::vector<std::optional<engine::LayerDraft>> drafts_;
  std::vector<engine::TokenDigester> digesters_;
  std::vector<std::int64_t> digested_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_MUTATION_H_

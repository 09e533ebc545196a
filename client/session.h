// A session as one writer sees it.
//
// The handle remembers the generation and every layer's position, so that a message always says
// where its tokens go and a retry is recognised. Large calls are cut into messages that fit the
// server's limits; by the contract outputs do not depend on the cuts.
//
// Thread-safe. One call at a time changes a layer; others wait (client/ledger.h). Errors are final,
// retries have been made. After an error of Append or Step, position(layer) tells how many tokens
// were acknowledged. If the last message's outcome is unknown (UNAVAILABLE, DEADLINE_EXCEEDED),
// send exactly the rest of that call again from there, or Refresh(): a message that did arrive is
// not counted twice.
#ifndef ATTND_CLIENT_SESSION_H_
#define ATTND_CLIENT_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "client/calls.h"
#include "client/chunking.h"
#include "client/ledger.h"
#include "client/stream.h"

namespace attnd::client {

class Transport;

class SessionHandle {
 public:
  // Use Client::CreateSession and Client::AttachSession.
  SessionHandle(std::shared_ptr<Transport> transport, const v1::ServerLimits& limits,
                const v1::Session& session);

  const std::string& id() const { return id_; }
  std::uint64_t generation() const { return generation_; }
  std::int64_t layers() const { return static_cast<std::int64_t>(shapes_.size()); }
  const LayerShape& shape(std::int64_t layer) const {
    return shapes_[static_cast<std::size_t>(layer)];
  }
  // Tokens of a layer that the server has acknowledged. Requires 0 <= layer < layers().
  std::int64_t position(std::int64_t layer = 0) const { return ledger_->Acknowledged(layer); }
  // Of these, the ones that would survive a crash, as far as the server has said; 0 of an EPHEMERAL
  // session. A writer of a CHECKPOINTED session keeps what comes after them to send it again.
  std::int64_t durable_position(std::int64_t layer = 0) const { return ledger_->Durable(layer); }

  // Appends any number of tokens to one or more layers. What fits one message is applied at one
  // moment; a larger call advances all its layers together, message by message.
  absl::StatusOr<AppendResult> Append(std::span<const LayerTokens> tokens,
                                      const CallOptions& call = {});
  absl::StatusOr<AppendResult> Append(const LayerTokens& tokens, const CallOptions& call = {});

  // The same, beginning at the given positions (one per entry of `tokens`) instead of the current
  // ones: repeats a call whose outcome another process did not learn. Tokens that are there are
  // acknowledged as replayed. Tokens further back than the server remembers are taken to be there,
  // as the session's position says, and are not sent: only the last messages' data is compared.
  absl::StatusOr<AppendResult> AppendAt(std::span<const LayerTokens> tokens,
                                        std::span<const std::int64_t> positions,
                                        const CallOptions& call = {});

  // Answers queries [n, Hq, d_k] over all tokens of the layer. A layer whose answers depend on all
  // queries of a call (KdeConfig.PAPER) gets them in one message, or INVALID_ARGUMENT.
  absl::StatusOr<AttendResult> Attend(std::int64_t layer, const ConstTensor& queries,
                                      const AttendOptions& options = {});

  // Appends tokens and answers the queries of the same tokens causally. If a call of several
  // messages fails partway, the answers of its acknowledged tokens are lost with it: where they
  // matter, send pieces that fit one message.
  absl::StatusOr<StepResult> Step(const LayerTokens& tokens, const ConstTensor& queries,
                                  const StepOptions& options = {});

  // The same, beginning at the given position instead of the current one: repeats a call whose
  // outcome another process did not learn. The server remembers only the answer to a layer's last
  // message; of a call of several messages that got further than one, a repetition fails with
  // FAILED_PRECONDITION (STEP_REPLAY_EXPIRED).
  absl::StatusOr<StepResult> StepAt(const LayerTokens& tokens, std::int64_t position,
                                    const ConstTensor& queries, const StepOptions& options = {});

  // Reads the session and takes over its positions. ABORTED if its generation has changed: attach
  // again. Requires that no other call of this handle is running.
  absl::StatusOr<v1::Session> Refresh(const CallOptions& call = {});

  // Returns once the tokens acknowledged so far would survive a crash: durable_position(layer) is
  // then position(layer). INVALID_ARGUMENT (UNSUPPORTED) for an EPHEMERAL session; ABORTED if its
  // generation has changed, and with it perhaps its tokens.
  absl::Status Flush(const CallOptions& call = {});

  // A bidirectional stream on this session; it may be used together with the calls above.
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream(const StreamOptions& options = {});

 private:
  // The session as it is; ABORTED if its generation has changed.
  absl::StatusOr<v1::Session> Current(absl::Time deadline);
  bool HeldSince(std::span<const LayerTokens> tokens, std::span<const std::int64_t> positions,
                 std::int64_t rows, std::int64_t more) const;
  absl::StatusOr<AppendResult> AppendLocked(std::span<const LayerTokens> tokens,
                                            std::vector<std::int64_t> positions,
                                            absl::Time deadline);
  // At the layer's acknowledged position if none is given.
  absl::StatusOr<StepResult> StepFrom(std::optional<std::int64_t> position,
                                      const LayerTokens& tokens, const ConstTensor& queries,
                                      const StepOptions& options);
  absl::StatusOr<StepResult> StepLocked(std::int64_t position, const LayerTokens& tokens,
                                        const ConstTensor& queries, const StepOptions& options,
                                        absl::Time deadline);
  // Tokens that the server has. Requires the layer's turn.
  void Acknowledge(const v1::LayerTokens& sent);
  void NoteDurable(const google::protobuf::RepeatedPtrField<v1::LayerPosition>& positions);

  const std::shared_ptr<Transport> transport_;
  const v1::ServerLimits server_limits_;
  const ChunkLimits limits_;
  const std::string id_;
  const std::uint64_t generation_;
  const std::vector<LayerShape> shapes_;
  // Shared with the streams of the session.
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_SESSION_H_

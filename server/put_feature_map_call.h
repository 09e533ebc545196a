// The reactor of a PutFeatureMap: reads one message after another, takes each into the upload, and
// finishes once. It ends
//   - OK, when the client has sent all, or after the header of a map that is there already;
//   - with what is wrong, at the first message that is refused;
//   - UNAVAILABLE SHUTTING_DOWN, when the server drains;
//   - DEADLINE_EXCEEDED, when it is not done within feature_map_upload_timeout;
//   - without a word, when the client has gone away.
// Each message is admitted while it is taken, as one of a Stream, and destroyed before its ticket
// goes; between messages an upload holds what it has reserved in the store, and no message.
//
// gRPC calls the On... functions from its threads; one mutex orders them and those who end the
// call. The object deletes itself in OnDone.
#ifndef ATTND_SERVER_PUT_FEATURE_MAP_CALL_H_
#define ATTND_SERVER_PUT_FEATURE_MAP_CALL_H_

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/call.h"
#include "server/call_context.h"
#include "server/call_registry.h"
#include "server/feature_map_store.h"
#include "server/feature_map_upload.h"
#include "server/message_handler.h"
#include "server/mutex.h"

namespace attnd::server {

class PutFeatureMapCall final : public grpc::ServerReadReactor<v1::PutFeatureMapRequest>,
                                private OpenCall {
 public:
  // The call owns itself. The referenced objects outlive it.
  static PutFeatureMapCall* Start(grpc::CallbackServerContext& context,
                                  const CallServices& services, MessageHandler& messages,
                                  FeatureMapStore& store, v1::PutFeatureMapResponse& response);

 private:
  PutFeatureMapCall(grpc::CallbackServerContext& context, const CallServices& services,
                    MessageHandler& messages, FeatureMapStore& store,
                    v1::PutFeatureMapResponse& response);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Drain() override;
  bool IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) override;
  bool IsStuckLocked(std::int64_t now_nanos, std::int64_t patience_nanos) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HoldToEnd() override;
  void EndStuck() override;

  // Takes the message that has been read, out of request_. The status to end with, if it is over.
  std::optional<absl::Status> Take();
  // Ends the upload: the client has sent all that is needed.
  absl::Status Complete();
  // Ends the call, unless it has ended; while a message is being taken, right after.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // The end, outside the lock, for whoever has set finished_.
  void FinishWith(const absl::Status& status);

  grpc::CallbackServerContext& context_;
  const CallServices services_;
  MessageHandler& messages_;
  v1::PutFeatureMapResponse& response_;
  const std::int64_t start_nanos_;
  v1::PutFeatureMapRequest request_;
  std::optional<FeatureMapUpload> upload_;  // of whoever takes a message or has set finished_
  HeldCall held_;                           // from HoldToEnd() to EndStuck()

  Mutex mutex_;
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // to end with once the message is taken
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t finish_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_PUT_FEATURE_MAP_CALL_H_

// attnd.v1.AttentionService on gRPC's callback API: the border between gRPC and the server's own
// code.
//
// Thread-safe. Reactions run on gRPC's small pool of threads (half as many as there are cores in
// 1.51, 2 to 16), so none blocks, and none computes for long: calls on sessions are bookkeeping,
// messages go to MessageHandler.
#ifndef ATTND_SERVER_SERVICE_H_
#define ATTND_SERVER_SERVICE_H_

#include "attnd/v1/attention.grpc.pb.h"
#include "server/call.h"
#include "server/feature_map_store.h"
#include "server/message_handler.h"
#include "server/session_directory.h"
#include "server/session_keeper.h"

namespace attnd::server {

class Service final : public v1::AttentionService::CallbackService {
 public:
  // The referenced objects outlive the service; `keeper` is null without a store. `info` is what
  // GetServerInfo answers.
  Service(const CallServices& services, SessionDirectory& sessions, SessionTable& table,
          SessionKeeper* keeper, MessageHandler& messages, FeatureMapStore& maps,
          v1::ServerInfo info)
      : services_(services),
        sessions_(sessions),
        table_(table),
        keeper_(keeper),
        messages_(messages),
        maps_(maps),
        info_(std::move(info)) {}

 private:
  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const v1::CreateSessionRequest* request,
                                          v1::Session* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* request,
                                       v1::Session* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* UpdateSession(grpc::CallbackServerContext* context,
                                          const v1::UpdateSessionRequest* request,
                                          v1::Session* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const v1::DeleteSessionRequest* request,
                                          v1::DeleteSessionResponse* response) override;
  grpc::ServerUnaryReactor* FlushSession(grpc::CallbackServerContext* context,
                                         const v1::FlushSessionRequest* request,
                                         v1::FlushSessionResponse* response) override;
  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const v1::AppendRequest* request,
                                   v1::AppendResponse* response) override;
  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const v1::AttendRequest* request,
                                   v1::AttendResponse* response) override;
  grpc::ServerUnaryReactor* Step(grpc::CallbackServerContext* context,
                                 const v1::StepRequest* request,
                                 v1::StepResponse* response) override;
  grpc::ServerBidiReactor<v1::StreamRequest, v1::StreamResponse>* Stream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::PutFeatureMapRequest>* PutFeatureMap(
      grpc::CallbackServerContext* context, v1::PutFeatureMapResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;

  void DoCreate(const v1::CreateSessionRequest& request, SessionDirectory::Then then);
  void DoUpdate(const v1::UpdateSessionRequest& request, SessionDirectory::Then then);
  void Flush(const SessionPtr& session, v1::FlushSessionResponse& response,
             SessionStore::Done done);
  absl::Status DoList(const v1::ListSessionsRequest& request, v1::ListSessionsResponse& response);

  const CallServices services_;
  SessionDirectory& sessions_;
  SessionTable& table_;
  SessionKeeper* const keeper_;
  MessageHandler& messages_;
  FeatureMapStore& maps_;
  const v1::ServerInfo info_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICE_H_

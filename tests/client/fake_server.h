// An AttentionService for tests of the client library: in memory, on a free loopback port, with
// failures on demand.
//
// It keeps the contract's rules (tests/client/fake_sessions.h) and refuses messages and answers
// over its limits. Thread-safe.
#ifndef ATTND_TESTS_CLIENT_FAKE_SERVER_H_
#define ATTND_TESTS_CLIENT_FAKE_SERVER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/server.h"
#include "tests/client/fake_sessions.h"

namespace attnd::client {

class FakeServer final : public v1::AttentionService::Service {
 public:
  FakeServer();
  ~FakeServer() override;

  const std::string& target() const { return target_; }

  // Limits as published and enforced; set before clients connect.
  v1::ServerLimits limits;
  // Added to what an answer row counts for, so that the server refuses what the client thinks fits.
  std::int64_t extra_answer_bytes_per_row = 0;

  // The next calls end with these, before anything is done.
  void FailNext(std::vector<grpc::Status> statuses);
  // The next `count` calls are carried out and their answers lost (UNAVAILABLE).
  void DropNextAnswers(int count);
  // Answers of streams wait until the gate is open.
  void SetStreamGate(bool open);
  // Streams end with this status after so many answers, the next messages unread.
  void EndStreamsAfter(int answers, grpc::Status status);
  // Streams begin with an empty answer that nothing was asked for.
  void BeginStreamsWithAnAnswer();
  // What grpc.health.v1 says; true at first.
  void SetServing(bool serving);
  // Every session gets a new generation, as after a restore that lost tokens.
  void RaiseGenerations();

  // What was seen.
  struct Seen {
    std::int64_t calls = 0;
    // Until the last call's deadline.
    std::chrono::nanoseconds time_left{0};
    std::int64_t largest_request = 0;
    std::int64_t largest_answer = 0;
    std::int64_t applied_messages = 0;
    std::int64_t replayed_messages = 0;
    std::multiset<std::string> session_headers;
    // Of uploads: the last header and payload, and the largest chunk.
    v1::FeatureMapHeader map_header;
    std::string map_payload;
    std::size_t largest_chunk = 0;
  };
  Seen seen();
  std::int64_t PositionOf(const std::string& session, int layer = 0);

  grpc::Status CreateSession(grpc::ServerContext* context, const v1::CreateSessionRequest* request,
                             v1::Session* response) override;
  grpc::Status GetSession(grpc::ServerContext* context, const v1::GetSessionRequest* request,
                          v1::Session* response) override;
  grpc::Status ListSessions(grpc::ServerContext* context, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override;
  grpc::Status UpdateSession(grpc::ServerContext* context, const v1::UpdateSessionRequest* request,
                             v1::Session* response) override;
  grpc::Status DeleteSession(grpc::ServerContext* context, const v1::DeleteSessionRequest* request,
                             v1::DeleteSessionResponse* response) override;
  grpc::Status FlushSession(grpc::ServerContext* context, const v1::FlushSessionRequest* request,
                            v1::FlushSessionResponse* response) override;
  grpc::Status Append(grpc::ServerContext* context, const v1::AppendRequest* request,
                      v1::AppendResponse* response) override;
  grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                      v1::AttendResponse* response) override;
  grpc::Status Step(grpc::ServerContext* context, const v1::StepRequest* request,
                    v1::StepResponse* response) override;
  grpc::Status Stream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream) override;
  // Keeps the names of maps; one that is there ends the upload after its header.
  grpc::Status PutFeatureMap(grpc::ServerContext* context,
                             grpc::ServerReader<v1::PutFeatureMapRequest>* reader,
                             v1::PutFeatureMapResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* response) override;

 private:
  // Counts the call and says how it is to fail; `lose_answer` is set if it fails after its work.
  grpc::Status Enter(grpc::ServerContext* context, std::int64_t bytes, bool* lose_answer);
  grpc::Status Leave(const grpc::Status& status, std::int64_t bytes, bool lose_answer);
  grpc::Status DoAppend(const v1::AppendRequest& request, v1::AppendResponse* response);
  grpc::Status DoAttend(const v1::AttendRequest& request, v1::AttendResponse* response);
  grpc::Status DoStep(const v1::StepRequest& request, v1::StepResponse* response);

  std::string target_;
  std::unique_ptr<grpc::Server> server_;

  std::mutex mutex_;
  std::condition_variable changed_;
  FakeSessions sessions_;
  std::deque<grpc::Status> fail_next_;
  int drop_next_ = 0;
  bool stream_gate_open_ = true;
  bool stopping_ = false;
  bool unasked_answers_ = false;
  int end_streams_after_ = -1;
  grpc::Status end_streams_with_;
  std::set<std::string> maps_;
  Seen seen_;
};

}  // namespace attnd::client

#endif  // ATTND_TESTS_CLIENT_FAKE_SERVER_H_

// The sessions of a FakeServer: the contract's rules for positions, generations, remembered
// messages and replayed Steps.
//
// The arithmetic is a stand-in whose result shows which tokens and which query went in:
// out[h][j] = q[h][0] + sum over visible unmasked tokens of v[h / g][j]. F32 only. Estimates of a
// query row of a head that sees p tokens: error as asked for, p keys. Not thread-safe.
#ifndef ATTND_TESTS_CLIENT_FAKE_SESSIONS_H_
#define ATTND_TESTS_CLIENT_FAKE_SESSIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"
#include "grpcpp/support/status.h"

namespace attnd::client {

// What an answer may take.
struct AnswerLimit {
  std::int64_t max_bytes = 0;
  // Added to what a row counts for.
  std::int64_t extra_bytes_per_row = 0;
};

class FakeSessions {
 public:
  grpc::Status Create(const v1::CreateSessionRequest& request, v1::Session* response);
  grpc::Status Get(const v1::GetSessionRequest& request, v1::Session* response);
  void List(const v1::ListSessionsRequest& request, v1::ListSessionsResponse* response);
  grpc::Status Update(const v1::UpdateSessionRequest& request, v1::Session* response);
  void Delete(const v1::DeleteSessionRequest& request);
  grpc::Status Flush(const v1::FlushSessionRequest& request, v1::FlushSessionResponse* response);
  grpc::Status Append(const v1::AppendRequest& request, v1::AppendResponse* response);
  grpc::Status Attend(const v1::AttendRequest& request, const AnswerLimit& limit,
                      v1::AttendResponse* response);
  grpc::Status Step(const v1::StepRequest& request, const AnswerLimit& limit,
                    v1::StepResponse* response);

  // Every session gets a new generation, as after a restore that lost tokens.
  void RaiseGenerations();

  std::int64_t PositionOf(const std::string& session, int layer) const;
  std::int64_t applied_messages() const { return applied_messages_; }
  std::int64_t replayed_messages() const { return replayed_messages_; }

 private:
  struct Layer {
    v1::LayerGroup group;
    std::int64_t position = 0;
    std::int64_t durable = 0;
    // Values of unmasked tokens, zeros for masked ones: [position, H, d_v].
    std::vector<float> values;
    // Content of every accepted message by its position, and the last Step's answer.
    std::map<std::int64_t, std::string> messages;
    std::int64_t last_step_position = -1;
    v1::StepResponse last_step;
  };
  struct Session {
    v1::Session facts;
    std::vector<Layer> layers;
  };

  grpc::Status Find(const std::string& id, Session** session);
  static void Describe(const Session& session, v1::Session* response);
  static grpc::Status CheckMutation(const v1::LayerTokens& tokens, std::uint64_t generation,
                                    const std::string& content, Session& session, bool* replayed);
  static void Apply(const v1::LayerTokens& tokens, const std::string& content, Layer* layer);
  static grpc::Status Answer(const Layer& layer, const v1::Tensor& queries,
                             const v1::AnswerOptions& options, const AnswerLimit& limit,
                             std::int64_t first_visible, bool causal, v1::Answer* answer);
  static void Estimate(std::int64_t queries, std::int64_t heads, const v1::Accuracy& accuracy,
                       std::int64_t first_visible, bool causal, v1::Estimates* estimates);

  std::map<std::string, Session> sessions_;
  std::uint64_t next_generation_ = 1000;
  std::int64_t applied_messages_ = 0;
  std::int64_t replayed_messages_ = 0;
};

}  // namespace attnd::client

#endif  // ATTND_TESTS_CLIENT_FAKE_SESSIONS_H_

// The client library: a connection to an attnd server.
//
//   auto client = Client::Connect({.target = "127.0.0.1:50051"});
//   auto session = (*client)->CreateSession(config);
//   (*session)->Append({.layer = 0, .keys = F32(k, {n, 1, 64}), .values = F32(v, {n, 1, 64})});
//   auto answer = (*session)->Attend(0, F32(q, {m, 1, 64}));
//
// Thread-safe. Sessions outlive the Client object they came from. Every call has a deadline and is
// retried where the contract makes that safe (client/retry.h); what is returned is final.
#ifndef ATTND_CLIENT_CLIENT_H_
#define ATTND_CLIENT_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "client/options.h"

namespace attnd::client {

struct FeatureMapWeights;  // client/feature_map.h
class SessionHandle;
class Transport;

// A new 128-bit id in hexadecimal, from the system's random numbers.
std::string NewSessionId();

struct ListOptions {
  // Only sessions that carry all of these labels.
  std::map<std::string, std::string> labels;
  // Sessions per page; 0: the server's default.
  std::int32_t page_size = 0;
  std::string page_token;
  CallOptions call;
};

struct SessionUpdate {
  std::optional<absl::Duration> time_to_live;
  // Replaces all labels.
  std::optional<std::map<std::string, std::string>> labels;
};

class Client {
 public:
  // Connects and reads the server's limits. UNAVAILABLE if the server cannot be reached.
  static absl::StatusOr<std::shared_ptr<Client>> Connect(ClientOptions options);

  // As read when connecting.
  const v1::ServerInfo& server_info() const { return info_; }

  // Creates a session; an empty id means a new one. The same id and configuration again is a
  // success.
  absl::StatusOr<std::shared_ptr<SessionHandle>> CreateSession(const v1::SessionConfig& config,
                                                               const std::string& id = "",
                                                               const CallOptions& call = {});
  // A handle to an existing session at its current generation and positions.
  absl::StatusOr<std::shared_ptr<SessionHandle>> AttachSession(const std::string& id,
                                                               const CallOptions& call = {});

  // Uploads a learned feature map, which configurations then name by the answer's sha256. Uploading
  // it again is a success and costs little; CreateSession fails with UNKNOWN_FEATURE_MAP where the
  // server has given it up. `session_id`: of a session that will use it, by which proxies route.
  absl::StatusOr<v1::PutFeatureMapResponse> PutFeatureMap(const FeatureMapWeights& weights,
                                                          const std::string& session_id = "",
                                                          const CallOptions& call = {});

  absl::StatusOr<v1::Session> GetSession(const std::string& id, const CallOptions& call = {});
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(const ListOptions& options = {});
  absl::StatusOr<v1::Session> UpdateSession(const std::string& id, const SessionUpdate& update,
                                            const CallOptions& call = {});
  absl::Status DeleteSession(const std::string& id, const CallOptions& call = {});
  // Returns once what the session holds would survive a crash, with the positions up to which that
  // is so. INVALID_ARGUMENT (UNSUPPORTED) for an EPHEMERAL session.
  absl::StatusOr<v1::FlushSessionResponse> FlushSession(const std::string& id,
                                                        const CallOptions& call = {});

 private:
  Client(std::shared_ptr<Transport> transport, v1::ServerInfo info);

  std::shared_ptr<Transport> transport_;
  const v1::ServerInfo info_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CLIENT_H_

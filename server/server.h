// The whole server, put together: sessions, workers, gRPC, HTTP, and the order in which they stop.
//
// For one thread, but for sessions().
#ifndef ATTND_SERVER_SERVER_H_
#define ATTND_SERVER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/clock.h"
#include "server/options.h"
#include "server/session_table.h"

namespace attnd::server {

class Server {
 public:
  // Starts listening; the options are resolved. `clock` outlives the server. UNAVAILABLE with a
  // one-line message where an address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options, const Clock& clock,
                                                       SessionTable::Random random);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // HOST:PORT with the ports that were bound; the HTTP one is empty where there is none.
  const std::string& grpc_address() const;
  const std::string& http_address() const;

  SessionTable& sessions();

  // Shuts down and returns within drain_delay + drain_deadline, and a little:
  //  1. health and /readyz say that no traffic is wanted; for drain_delay all goes on,
  //  2. new messages are refused with SHUTTING_DOWN, streams end after the message under way,
  //  3. work under way ends, for at most drain_deadline,
  //  4. what is then still there, a peer that does not read say, is cancelled.
  void Drain();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVER_H_

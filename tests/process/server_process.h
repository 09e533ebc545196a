// A server as a process of its own, as in production. For one thread.
#ifndef ATTND_TESTS_PROCESS_SERVER_PROCESS_H_
#define ATTND_TESTS_PROCESS_SERVER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace attnd::process {

class ServerProcess {
 public:
  // Starts `command`, whose first word is the program. Each "READY_FILE" in it is replaced by the
  // path at which the server is to write `grpc=HOST:PORT` once it listens; ends this process with a
  // message where that does not happen within ten seconds. Call it before gRPC is used here.
  explicit ServerProcess(std::vector<std::string> command);
  // SIGTERM, and waits, unless it was killed.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // SIGKILL, and waits: as after a crash of the process.
  void Kill();
  // SIGTERM, and waits. The exit status, as waitpid() gives it.
  int Stop();

  // HOST:PORT of the gRPC port.
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = 0;
  std::string address_;
};

}  // namespace attnd::process

#endif  // ATTND_TESTS_PROCESS_SERVER_PROCESS_H_

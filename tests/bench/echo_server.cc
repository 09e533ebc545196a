// attnd_echo READY_FILE: what attnd's calls would cost if they did no work. Attend and Append
// are answered inside their reaction with answers of attnd's sizes; the process is set up as
// attnd's is. Ends on SIGTERM.
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/options.h"
#include "server/ready_file.h"
#include "server/runtime.h"
#include "server/transport_options.h"

namespace attnd::bench {
namespace {

class Echo final : public v1::AttentionService::CallbackService {
 private:
  // d_k = d_v, so that outputs are as large as queries.
  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const v1::AttendRequest* request,
                                   v1::AttendResponse* response) override {
    *response->mutable_answer()->mutable_outputs() = request->queries();
    response->set_position(1 << 12);
    return Finished(context);
  }

  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const v1::AppendRequest* request,
                                   v1::AppendResponse* response) override {
    for (const v1::LayerTokens& tokens : request->tokens()) {
      v1::LayerPosition& position = *response->add_positions();
      position.set_layer(tokens.layer());
      position.set_position(tokens.position() + tokens.keys().shape(0));
    }
    return Finished(context);
  }

  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

int Main(int argc, char** argv) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  server::TuneRuntime();

  Echo echo;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&echo);
  server::AddTransportOptions(server::Options{}, builder);
  const std::unique_ptr<grpc::Server> grpc = builder.BuildAndStart();
  if (!grpc || port == 0 || argc != 2 ||
      !server::WriteReadyFile(argv[1], absl::StrCat("127.0.0.1:", port), "").ok()) {
    std::fprintf(stderr, "attnd_echo: cannot start\n");
    return 1;
  }
  int signal_number = 0;
  sigwait(&stop, &signal_number);
  grpc->Shutdown();
  return 0;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) { return attnd::bench::Main(argc, argv); }

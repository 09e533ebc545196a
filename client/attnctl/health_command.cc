#include "client/attnctl/health_command.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/duration.h"
#include "client/error.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace attnd::attnctl {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);

}  // namespace

absl::Status Run(const Context& context, const HealthCommand&) {
  using grpc::health::v1::HealthCheckResponse;
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel(context.server, grpc::InsecureChannelCredentials()));
  grpc::ClientContext call;
  call.set_deadline(
      std::chrono::system_clock::now() +
      client::ToChrono(context.timeout > absl::ZeroDuration() ? context.timeout : kPatience));
  HealthCheckResponse response;
  const absl::Status status = client::FromGrpc(stub->Check(&call, {}, &response));
  if (!status.ok()) return status;
  if (response.status() != HealthCheckResponse::SERVING) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server at ", context.server, " says ",
                     HealthCheckResponse::ServingStatus_Name(response.status())));
  }
  if (context.json) {
    PrintJson(response);
  } else {
    std::puts("SERVING");
  }
  return absl::OkStatus();
}

}  // namespace attnd::attnctl
